"""Writers of tables (csv, jsonl, xlsx), whose file appears when it is complete."""

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cosent.atomic import partial_file
from cosent.data.formats import as_text, format_of, import_openpyxl, known_format
from cosent.errors import InputError

XLSX_ROWS, XLSX_CHARACTERS = 1_048_576, 32_767  # with the names; of a cell

Write = Callable[[list[dict]], None]


def check_output(path: str | Path, input_path: str | Path, overwrite: bool) -> None:
    """Refuses an output file that cannot be written, or that exists without `overwrite`."""
    path, format = Path(path), output_format(path)
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: the folder {path.parent} does not exist. Create it first.")
    if path.resolve() == Path(input_path).resolve():
        raise InputError(f"--output {path} is the input. Name another output.")
    if path.exists() and (path.is_dir() or not overwrite):
        raise InputError(f"--output {path} exists. Name another, or pass --overwrite.")
    if format == "xlsx":
        import_openpyxl(path)


def output_format(path: str | Path) -> str:
    """The format of a table to write, or an error that names the formats."""
    format = known_format(path, "--output")
    if format not in WRITERS:
        raise InputError(f"{path}: tables are written as .csv, .jsonl or .xlsx. Name such a file.")
    return format


@contextmanager
def table_writer(path: str | Path, names: Sequence[str]) -> Iterator[Write]:
    """Yields a function that appends rows, `{column: value}`, to a new file; see `check_output`.

    JSON lines have the keys of each row, the other formats the columns `names`.
    """
    format = output_format(path)
    with partial_file(path) as partial, WRITERS[format](partial, names, str(path)) as write:

        def write_checked(rows: list[dict]) -> None:
            extra = set().union(*rows).difference(names)
            if extra and format != "jsonl":
                raise InputError(
                    f"{path}: expected rows with the columns {', '.join(names)}, got one with "
                    f"{', '.join(sorted(extra))} too. Write .jsonl, or give all rows the same keys."
                )
            write(rows)

        yield write_checked


@contextmanager
def _text_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    opened = gzip.open if path.lower().endswith(".gz") else open
    with opened(partial, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if format_of(path) == "jsonl":
            yield lambda rows: file.writelines(as_text(row) + "\n" for row in rows)
            return
        writer = csv.DictWriter(file, names, lineterminator="\r\n")  # "\n" leaves a CR in a text unquoted
        writer.writeheader()
        yield writer.writerows


@contextmanager
def _xlsx_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    openpyxl = import_openpyxl(path)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    count = 0

    def cell(value: object) -> object:
        """A value as a cell: lists become JSON, and text stays text, also where it begins with `=`."""
        value = as_text(value) if isinstance(value, list | dict) else value
        value = value.isoformat() if isinstance(value, datetime) and value.tzinfo else value  # Excel has no zones
        if not isinstance(value, str):
            return value
        if len(value) > XLSX_CHARACTERS:
            raise InputError(f"{path}: a cell of xlsx holds {XLSX_CHARACTERS:,} characters, got more. Write .csv.")
        text = openpyxl.cell.WriteOnlyCell(sheet, value)
        text.data_type = "s"
        return text

    def write(rows: list[dict]) -> None:
        nonlocal count
        count += len(rows)
        if count > XLSX_ROWS:
            raise InputError(f"{path}: a sheet of xlsx holds {XLSX_ROWS:,} rows, and there are more. Write .csv.")
        try:
            for row in rows:
                sheet.append([cell(row.get(name)) for name in names])
        except openpyxl.utils.exceptions.IllegalCharacterError as error:
            raise InputError(f"{path}: xlsx has no control characters, got {str(error)!r}. Write .csv.") from error

    try:
        write([dict(zip(names, names, strict=True))])
        yield write
    except BaseException:
        sheet.close()  # else its generator ends whenever it is collected, and complains
        raise
    book.save(partial)


WRITERS = {"csv": _text_writer, "jsonl": _text_writer, "xlsx": _xlsx_writer}
