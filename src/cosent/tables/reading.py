"""Read the rows of a table of sentences by the names of its columns, as a stream; nothing is skipped in silence."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosent.errors import InputError
from cosent.tables.formats import (
    AS_USUAL,
    KEYED,
    SENTENCE1_NAMES,
    SENTENCE2_NAMES,
    TEXT_NAMES,
    FileOptions,
    known_format,
    separator_hint,
)
from cosent.tables.labels import is_label
from cosent.tables.records import RowError, open_parquet, place, read_records

logger = logging.getLogger(__name__)
SENTENCE, PAIR = (TEXT_NAMES,), (SENTENCE1_NAMES, SENTENCE2_NAMES)  # what is looked for in a table


@dataclass(frozen=True)
class Table:
    """A file of rows, and the columns of its sentences.

    Args:
        names: all columns; those of a file without a header have made-up names.
        sentences: the columns of sentences, which must be text.
        header: whether line 1 holds the names.
    """

    path: Path
    format: str
    names: tuple[str, ...]
    sentences: tuple[str, ...]
    header: bool
    options: FileOptions = AS_USUAL

    def rows(self, columns: Sequence[str] | None = None, keep_empty: bool = False) -> Iterator[dict]:
        """Streams the rows as `{column: value}`; values of txt, tsv and csv are text.

        Args:
            columns: those that are wanted, among them `sentences`; default: all, also those of JSON lines that the
                first one does not have.
            keep_empty: accept empty sentences and lines; default: stop at the first.

        Raises:
            InputError: a row that cannot be read, with its line; or no row at all.
        """
        empty, header, found = dict.fromkeys(self.names) | dict.fromkeys(self.sentences, ""), self.header, False
        for number, _, fields in read_records(self.path, self.format, columns, self.options):
            if header and fields:
                header = False
                continue
            try:
                if isinstance(fields, RowError):
                    raise fields
                row = self.named(fields) if fields or not keep_empty else empty
                for name in self.sentences:
                    check_sentence(row, name, keep_empty)
                for name in columns or ():
                    if name not in row:
                        raise RowError(f"the column {name}", f"a row with {', '.join(row)}")
            except RowError as error:
                raise InputError(
                    f"{place(self.path, self.format, number)}: {error}. Skipped or guessed at, all results below would "
                    "belong to other rows. Correct or remove it."
                ) from error
            found = True
            yield row if columns is None else {name: row[name] for name in columns}
        if not found:
            raise InputError(f"{self.path} is empty: it has no rows. Name a file with sentences.")

    def texts(self, keep_empty: bool = False) -> Iterator[str]:
        """Streams the sentences of the only column of sentences."""
        (name,) = self.sentences
        return (row[name] for row in self.rows(self.sentences, keep_empty))

    def named(self, fields: list | dict) -> dict:
        if isinstance(fields, dict):
            return fields
        if not fields:
            raise RowError("a sentence", "an empty line")
        if len(fields) != len(self.names):
            raise RowError(f"{len(self.names)} columns ({', '.join(self.names)})", f"{len(fields)}")
        return dict(zip(self.names, fields, strict=True))


def check_sentence(row: dict, name: str, keep_empty: bool) -> None:
    if name not in row:
        raise RowError(f"the column {name}", f"a row with {', '.join(row) or 'no columns'}")
    value = row[name]
    if not isinstance(value, str):
        raise RowError(f"text in {name}", f"{value!r}" if value is not None else "nothing")
    if not keep_empty and not value.strip():
        raise RowError(f"a sentence in {name}", "an empty one")


def open_table(
    path: str | Path,
    wanted: Sequence[str] | None,
    known: Sequence[Sequence[str]],
    flag: str,
    what: str = "--input",
    options: FileOptions = AS_USUAL,
) -> Table:
    """Finds the columns of a file's sentences.

    TSV and CSV have a header if columns are named, or if line 1 has a known name for each; a sheet also if its first
    row is all text. Otherwise all columns must be sentences, but for a label behind two of them.

    Args:
        wanted: names of the columns, or their positions from 0 in a file without a header; None to find them.
        known: for each column of sentences, its usual names: `SENTENCE` or `PAIR`.
        flag: the flag of `wanted`, for messages.
        what: the flag of `path`.

    Raises:
        InputError: no such file, an unknown ending, or columns that are missing or not clear.
    """
    path, format = Path(path), known_format(path, what)
    if not path.is_file():
        raise InputError(f"{what}: there is no file {path}. Name one that ends as its format.")
    if wanted is not None and len(wanted) != len(known):
        raise InputError(f"{flag} takes {len(known)} column names, got {len(wanted)}: {' '.join(wanted)}.")
    if format == "txt" and len(known) > 1:
        format = "tsv"
    if format == "txt":
        if wanted is not None:
            raise InputError(f"{path} has a sentence per line and no columns, so {flag} does nothing. Leave it out.")
        return Table(path, format, ("text",), ("text",), header=False)
    first = first_fields(path, format, options)
    names = tuple(str(field).strip() for field in first)
    if format in KEYED:
        return Table(path, format, names, chosen(path, names, wanted, known, flag), False, options)
    if wanted is not None and all(name.isdecimal() for name in wanted) and not set(wanted) <= set(names):
        return without_header(path, format, first, [int(name) for name in wanted], known, flag, options)
    named = wanted is not None or all(set(some) & set(names) for some in known)
    if not named and not (format == "xlsx" and all(isinstance(field, str) and field.strip() for field in first)):
        with_label = len(known) == 2 and [is_label(field) for field in first] == [False, False, True]
        if len(first) > len(known) and not with_label:
            raise unclear(path, names, known, flag)
        taken = "the first two columns are the sentences" if with_label else "line 1 names no known column"
        logger.info("%s: no header, %s; %s says otherwise.", path, taken, flag)
        return without_header(path, format, first, list(range(len(known))), known, flag, options)
    if len(set(names)) < len(names):
        raise InputError(f"{path}, line 1: expected different columns, got {names}: one of two would be lost. Rename.")
    return Table(path, format, names, chosen(path, names, wanted, known, flag), True, options)


def first_fields(path: Path, format: str, options: FileOptions) -> list:
    """The columns of Parquet, the keys of the first row, or the fields of line 1."""
    if format == "parquet":
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError):
            raise InputError(f"{place(path, format, number)}: {fields}. Columns are read from it: correct the line.")
        if fields:
            return list(fields)
    raise InputError(f"{path} is empty: it has no rows. Name a file with sentences.")


def chosen(
    path: Path, names: tuple[str, ...], wanted: Sequence[str] | None, known: Sequence[Sequence[str]], flag: str
) -> tuple[str, ...]:
    """The columns of sentences among `names`."""
    if wanted is None and len(known) == len(names) == 1:
        return names
    found = [next((name for name in some if name in names), None) for some in known]
    if wanted is None:
        if None in found:
            raise unclear(path, names, known, flag)
        return tuple(name for name in found if name is not None)
    missing = [name for name in wanted if name not in names]
    if missing or len(set(wanted)) < len(wanted):
        raise InputError(
            f"{path}: {flag} {' '.join(wanted)}: expected different ones of its columns, {', '.join(names)}. Other "
            f"text would be read. Correct the name.{separator_hint(names)}"
        )
    return tuple(wanted)


def without_header(
    path: Path,
    format: str,
    first: Sequence[object],
    positions: list[int],
    known: Sequence[Sequence[str]],
    flag: str,
    options: FileOptions,
) -> Table:
    width = len(first)
    if max(positions) >= width or len(set(positions)) < len(positions):
        raise InputError(
            f"{path}, line 1: expected {len(positions)} columns of sentences at {positions} (counted from 0), got "
            f"{width} columns. Correct {flag}, or the ending of the file: .tsv has tabs, .csv commas."
            f"{separator_hint(first)}"
        )
    named = dict(zip(positions, (some[0] for some in known), strict=True))
    if positions == [0, 1] and width == 3:
        named[2] = "label"
    names = tuple(named.get(position, f"column{position + 1}") for position in range(width))
    return Table(path, format, names, tuple(named[position] for position in positions), False, options)


def unclear(path: Path, names: Sequence[str], known: Sequence[Sequence[str]], flag: str) -> InputError:
    usual = " and ".join(" or ".join(some[:2]) for some in known)
    return InputError(
        f"{path}: expected a column named {usual}, got {', '.join(names)}. Another column would be other text. Name it "
        f"with {flag}: a name of the first line, or a position from 0 in a file without one."
    )
