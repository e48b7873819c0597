"""Find the shape and the columns of a raw file of the user's own, and say what was found."""

from pathlib import Path

from cosent.data import files as tables
from cosent.data.files import KEYED, SCORE_NAMES, FileOptions, RowError, format_of, read_records, separator_hint
from cosent.errors import InputError
from data_scripts.queries import POSITIVE, QueryLayout, looks_like_scored_pairs, query_column
from data_scripts.readers import COLUMN_NAMES, Layout, Shape, find_columns

FORMATS = tables.FORMATS | {".txt": "tsv", ".data": "tsv"}  # a line of a corpus has tabs
FORMAT_NAMES = tuple(dict.fromkeys(FORMATS.values()))


def file_options(arguments) -> FileOptions:
    return FileOptions(arguments.sheet, arguments.encoding or "utf-8")


def find_shape(path: Path, arguments) -> tuple[Shape, str]:
    """The shape of a file, by the flags of `prepare` and the columns or keys of its first row, and what it is in words.

    Raises:
        InputError: an unknown format, or columns that are not clear.
    """
    format = arguments.format or format_of(path, FORMATS)
    if format is None:
        raise InputError(f"The format of {path} is not clear from its name. Pass --format {', '.join(FORMAT_NAMES)}.")
    first = _first_row(path, format, file_options(arguments))
    flags = (arguments.sentence1_column, arguments.sentence2_column, arguments.label_column)
    if any(flags) or arguments.header is False or query_column(first) is None:
        wanted = tuple(
            flag and (int(flag[0]) if flag[0].isdecimal() and len(flag) == 1 else (*flag,)) for flag in flags
        )
        known = (*COLUMN_NAMES[:2], SCORE_NAMES) if arguments.label_kind == "scores" else COLUMN_NAMES
        if format in KEYED:
            return _keyed_pairs(path, format, list(first), wanted, known, arguments.header)
        return _pairs(path, format, list(first), wanted, known, arguments.header)
    return _queries(path, format, first)


def _first_row(path: Path, format: str, options: FileOptions) -> dict | list[str]:
    """The first row with fields; where rows name their columns, the first one that can be read."""
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError) and format not in KEYED:
            raise InputError(f"{path}, line {number}: {fields}. The columns are read from it: correct the line.")
        if fields and not isinstance(fields, RowError):
            return fields if isinstance(fields, dict) else [str(field).strip() for field in fields]
    if format in KEYED:
        return {}
    raise InputError(f"{path} is empty: it has no rows. Nothing could be learnt from it: name another file.")


def _queries(path: Path, format: str, first: dict | list[str]) -> tuple[QueryLayout, str]:
    names = list(first)
    if looks_like_scored_pairs(names):
        raise InputError(
            f"{path}, line 1: {', '.join(names)} could be pairs with a label, or texts that all belong to their query. "
            "Taken for the wrong one, the labels are lost. For pairs, pass --sentence1_column, --sentence2_column and "
            "--label_column; for the other, remove the label."
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}, line 1: expected different columns, got {names}: one of two would be lost. Rename.")
    lists = isinstance(first, dict) and any(isinstance(value, list) for name, value in first.items()
                                            if POSITIVE.fullmatch(name))  # fmt: skip
    words = "lists of texts" if lists else "one text per column"
    shape = QueryLayout(format, isinstance(first, list), str(query_column(names)), lists)
    return shape, f"a query with positives and negatives per row, {words}"


def _keyed_pairs(
    path: Path, format: str, names: list[str], wanted: tuple, known: tuple, header: bool | None
) -> tuple[Layout, str]:
    if any(isinstance(column, int) for column in wanted) or header is not None:
        raise InputError(f"{path} is {format}: columns are named by their keys, and there is no header.")
    columns = tuple(column or names for column, names in zip(wanted, known, strict=True))
    layout = Layout(format, columns=columns, width=None)
    return layout, f"columns {', '.join(map(str, find_columns(names, layout, path)))}" if names else "no rows"


def _pairs(
    path: Path, format: str, names: list[str], wanted: tuple, known: tuple, flag: bool | None
) -> tuple[Layout, str]:
    header, why = _has_header(names, wanted, flag)
    if not header and any(isinstance(column, tuple) for column in wanted):
        raise InputError(
            f"{path} is read without a header (--no_header), so its columns have no names: give 0-based positions, got "
            f"{', '.join(' '.join(column) for column in wanted if isinstance(column, tuple))}."
        )
    by_name = [header and bool(set(some) & set(names)) for some in known]
    if len(names) != 3 and any(column is None and not found for column, found in zip(wanted, by_name, strict=True)):
        raise InputError(
            f"{path}, line 1: expected 3 columns (sentence1, sentence2, label) or a header with such names, got "
            f"{len(names)}: {names}. Taking the first three could train on an id. Pass --sentence1_column, "
            "--sentence2_column and --label_column (names of the header, or positions from 0), or --format; leave a "
            f"split without labels out with --leave_out.{separator_hint(names)}"
        )
    columns = tuple(
        column if column is not None else known[place] if by_name[place] else place
        for place, column in enumerate(wanted)
    )
    layout = Layout(format, header, columns, width=None)
    chosen = ", ".join(names[position] if header else str(position) for position in find_columns(names, layout, path))
    return layout, f"{why}, columns {chosen}"


def _has_header(names: list[str], wanted: tuple, flag: bool | None) -> tuple[bool, str]:
    """Whether line 1 is a header, and why: only if it holds known (or requested) column names."""
    if flag is not None:
        return flag, "line 1 is a header (--header)" if flag else "no header (--no_header)"
    if any(isinstance(column, tuple) for column in wanted):
        return True, "line 1 is a header (columns are asked for by name)"
    if all(set(known) & set(names) for known in COLUMN_NAMES[:2]):
        return True, "line 1 is a header (it holds column names; --no_header if not)"
    return False, "no header (line 1 holds no known column name; --header if it is one)"
