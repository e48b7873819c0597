"""Write rows to a table whose format is known by its ending; the file appears when it is complete."""

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cosent.errors import InputError, writing
from cosent.files import partial_file
from cosent.tables.formats import FORMATS, import_openpyxl, known_format

Write = Callable[[list[dict]], None]
XLSX_ROWS = 1_048_576  # with the names


def check_output(path: str | Path, input_path: str | Path, overwrite: bool) -> None:
    """Refuses an output file that could not be written, or would replace what is there.

    Raises:
        InputError: no such folder, an ending that no table is written by, or an existing file without `overwrite`.
    """
    path = Path(path)
    if known_format(path, "--output") not in WRITERS:
        endings = ", ".join(ending for ending, format in FORMATS.items() if format in WRITERS)
        raise InputError(f"--output {path}: a line of text has no columns. Name a file that ends in {endings}.")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: the folder {path.parent} does not exist. Create it first.")
    if path.resolve() == Path(input_path).resolve():
        raise InputError(f"--output {path} is the input: its rows would be lost. Name another output.")
    if path.exists() and (path.is_dir() or not overwrite):
        raise InputError(f"--output {path} exists, and nothing was written. Name another, or pass --overwrite.")
    if known_format(path, "--output") == "xlsx":
        import_openpyxl(path)


@contextmanager
def table_writer(path: str | Path, names: Sequence[str]) -> Iterator[Write]:
    """Yields a function that appends rows, `{column: value}`, to a new file.

    In TSV, tabs and line breaks of a text become spaces, since nothing is quoted there. JSON lines have the keys of
    each row, the other formats the columns `names`.

    Args:
        path: see `check_output`.
        names: the columns, in their order.

    Raises:
        InputError: a full disk, a row with another column, or a value of another type than Parquet
            took a column for in the first rows.
    """
    writer = WRITERS[known_format(path, "--output")]
    with writing(path), partial_file(path) as partial, writer(partial, names, str(path)) as write:
        yield write


@contextmanager
def text_file(partial: Path, path: str) -> Iterator[IO[str]]:
    opened = gzip.open if path.lower().endswith(".gz") else open
    with opened(partial, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        yield file


@contextmanager
def csv_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    with text_file(partial, path) as file:
        rows = csv.DictWriter(file, names, lineterminator="\n")
        rows.writeheader()

        def write(some: list[dict]) -> None:
            check_columns(some, names, path)
            rows.writerows(some)

        yield write


@contextmanager
def tsv_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    def line(values: Sequence[object]) -> str:
        return "\t".join("" if value is None else re.sub(r"[\t\r\n]+", " ", str(value)) for value in values) + "\n"

    with text_file(partial, path) as file:
        file.write(line(names))

        def write(some: list[dict]) -> None:
            check_columns(some, names, path)
            file.writelines(line([row.get(name) for name in names]) for row in some)

        yield write


@contextmanager
def jsonl_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    with text_file(partial, path) as file:
        yield lambda some: file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in some)


@contextmanager
def parquet_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    opened: list[pyarrow.parquet.ParquetWriter] = []

    def write(some: list[dict]) -> None:
        check_columns(some, names, path)
        columns = {name: [row.get(name) for row in some] for name in names}
        try:
            if not opened:
                table = pyarrow.table(columns)
                types = [pyarrow.string() if field.type == pyarrow.null() else field.type for field in table.schema]
                schema = pyarrow.schema(list(zip(names, types, strict=True)))
                opened.append(pyarrow.parquet.ParquetWriter(partial, schema))
            opened[0].write_table(pyarrow.table(columns, schema=opened[0].schema))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise InputError(f"{path}: a column of Parquet has one type, and later rows have another ({error}). "
                             "Correct them, or write .jsonl.") from error  # fmt: skip

    try:
        yield write
    finally:
        for writer in opened:
            writer.close()
    if not opened:
        raise InputError(f"{path}: there are no rows to write.")


@contextmanager
def xlsx_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    openpyxl = import_openpyxl(path)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    rows = 0

    def cell(value: object) -> object:
        """A value as a cell: lists become JSON, and text stays text, also where it begins with `=`."""
        if isinstance(value, list | dict):
            value = json.dumps(value, ensure_ascii=False, default=str)
        if not isinstance(value, str):
            return value
        found = openpyxl.cell.WriteOnlyCell(sheet, value)
        found.data_type = "s"
        return found

    def write(some: list[dict]) -> None:
        nonlocal rows
        check_columns(some, names, path)
        rows += len(some)
        if rows >= XLSX_ROWS:
            raise InputError(f"{path}: a sheet of xlsx holds {XLSX_ROWS:,} rows, and there are more. Write .parquet.")
        try:
            for row in some:
                sheet.append([cell(row.get(name)) for name in names])
        except openpyxl.utils.exceptions.IllegalCharacterError as error:
            raise InputError(
                f"{path}: xlsx takes no control characters, got {str(error)!r}. Write .parquet."
            ) from error

    sheet.append(list(names))
    try:
        yield write
    except BaseException:
        sheet.close()  # else its generator ends whenever it is collected, and complains
        raise
    book.save(partial)


def check_columns(some: list[dict], names: Sequence[str], path: str) -> None:
    for row in some:
        if more := row.keys() - set(names):
            raise InputError(
                f"{path}: expected rows with the columns {', '.join(names)}, as the first one, got one with "
                f"{', '.join(sorted(more))} too, which would be lost. Write .jsonl, or give all rows the same keys."
            )


WRITERS = {
    "tsv": tsv_writer,
    "csv": csv_writer,
    "jsonl": jsonl_writer,
    "parquet": parquet_writer,
    "xlsx": xlsx_writer,
}
