"""Read the records of a file: txt, TSV, CSV, JSON lines, Parquet or xlsx, each with its line and its text."""

import csv
import gzip
import json
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cosent.errors import InputError
from cosent.tables.formats import import_openpyxl

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET_ROWS = 1000  # decoded at a time


class RowError(InputError):
    """Error for a row that cannot be used; the message is `expected {expected}, got {got}`."""

    def __init__(self, expected: str, got: str):
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got = expected, got


Record = tuple[int, str, list | dict | RowError]  # line number, its text, its fields (or why it has none)


def place(path: Path | str, format: str, number: int) -> str:
    """A record in words, for errors."""
    return f"{path}, {'row' if format in ('parquet', 'xlsx') else 'line'} {number}"


def not_utf8(text: str) -> RowError | None:
    """Error for text, decoded with `surrogateescape`, that was not UTF-8; None if it was."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return RowError(
            "UTF-8",
            f"other bytes from character {error.start + 1} on (of a GBK file? `iconv -f GB18030 -t UTF-8` converts it; "
            "one of Windows' Unicode? `iconv -f UTF-16 -t UTF-8`)",
        )
    return None


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    Bytes that are not UTF-8 come back as lone surrogates, for `not_utf8` to report with their line.

    Raises:
        InputError: a damaged gzip file.
    """
    with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="surrogateescape")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not a complete gzip file: {error}. The sentences after this point would be missing. "
                "Compress or copy it again."
            ) from error


def read_records(path: Path, format: str, columns: Sequence[str] | None = None) -> Iterator[Record]:
    """Splits a file into records; a blank line has no fields.

    Args:
        format: `txt` (a line is the only field), `tsv` (tabs, never quoted), `csv`, `jsonl`, `parquet` or `xlsx`; of
            the last two, line numbers are those of rows.
        columns: of `parquet`, those to read; default: all.

    Raises:
        InputError: `parquet` or `xlsx`, and the file is another one; a damaged file.
    """
    for number, text, fields in _records(path, format, columns):
        yield number, text, not_utf8(text) or fields


def _records(path: Path, format: str, columns: Sequence[str] | None) -> Iterator[Record]:
    if format == "csv":
        return _read_csv(path)
    if format == "parquet":
        return _read_parquet(path, columns)
    return _read_xlsx(path) if format == "xlsx" else _read_by_line(path, format)


def _read_by_line(path: Path, format: str) -> Iterator[Record]:
    split = {"txt": lambda text: [text], "tsv": lambda text: text.split("\t"), "jsonl": _json_object}[format]
    for number, text in read_lines(path):
        yield number, text, split(text) if text.strip() else []


def _read_csv(path: Path) -> Iterator[Record]:
    consumed: list[str] = []

    def lines() -> Iterator[str]:
        for _, text in read_lines(path):
            consumed.append(text)
            yield text + "\n"

    reader = csv.reader(lines(), strict=True)
    while True:
        start = reader.line_num + 1  # a quoted sentence may span several lines; errors name the first
        consumed.clear()
        try:
            fields: list | RowError = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fields = RowError("comma-separated values, with quotes doubled inside quotes", str(error))
        if not isinstance(fields, RowError) and any(_is_row(line, len(fields)) for line in consumed[1:-1]):
            got = f"a quote that closes {len(consumed) - 1} lines further on, across lines that look like rows"
            fields = RowError("a quote closed where its sentence ends", got)
        if isinstance(fields, RowError):
            for number, line in enumerate(consumed, start):
                yield number, line, fields
            continue
        yield start, "\n".join(consumed), fields


def _is_row(line: str, width: int) -> bool:
    """Whether a line within quotes looks like a row of its own."""
    try:
        return len(next(csv.reader([line], strict=True))) == width
    except (csv.Error, StopIteration):
        return False


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    with open_parquet(path) as file:
        batches = file.iter_batches(batch_size=PARQUET_ROWS, columns=columns)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, as_text(row), row


def open_parquet(path: Path):
    """A `pyarrow.parquet.ParquetFile`.

    Raises:
        InputError: the file is another one, or cut off.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(
            f"{path} is not a Parquet file ({error}). Rename it by its format, or copy it again."
        ) from error


def _read_xlsx(path: Path) -> Iterator[Record]:
    """The rows of the only sheet that has any; row 1 names the columns. Empty rows at the end do not count."""
    names, rows = sheet_rows(path)
    empty: list[int] = []
    for number, cells in enumerate(rows, start=2):
        if all(cell is None for cell in cells):
            empty.append(number)
            continue
        for blank in empty:
            yield blank, "", []
        empty = []
        row = dict.fromkeys(names) | dict(zip(names, cells, strict=False))
        if any(cell is not None for cell in cells[len(names) :]):
            got = f"{len(cells)} cells"
            yield number, as_text(cells), RowError(f"{len(names)} cells, as row 1 has column names", got)
            continue
        yield number, as_text(row), row


def sheet_rows(path: Path) -> tuple[list[str], Iterator[tuple]]:
    """The names in row 1 of a workbook's only sheet with content, and its other rows.

    Raises:
        InputError: openpyxl is missing, the file is another one, several sheets have content, or row 1 has no names.
    """
    openpyxl = import_openpyxl(path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (openpyxl.utils.exceptions.InvalidFileException, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InputError(f"{path} is not an xlsx workbook ({error}). Save it again, or as CSV (UTF-8).") from error
    filled = [
        sheet for sheet in book.worksheets if any(any(row) for row in sheet.iter_rows(max_row=1, values_only=True))
    ]
    if len(filled) > 1:
        sheets = ", ".join(sheet.title for sheet in filled)
        raise InputError(f"{path} has several sheets ({sheets}), and one would be read. Save one as a file of its own.")
    rows = filled[0].iter_rows(values_only=True) if filled else iter(())
    first = list(next(rows, ()))
    while first and first[-1] is None:
        first.pop()
    if len(set(first)) < len(first) or not all(isinstance(name, str) and name.strip() for name in first):
        raise InputError(
            f"{path}, row 1: expected a different name for every column, got {first}. Insert a row of names."
        )
    return [name.strip() for name in first], rows


def as_text(row: object) -> str:
    """A row as JSON, for errors."""
    return json.dumps(row, ensure_ascii=False, default=str)


def _json_object(text: str) -> dict | RowError:
    hint = " (`jq -c '.[]' FILE` writes a list in lines)" if text.lstrip().startswith("[") else ""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        got = f"text that is not JSON ({error.msg}, column {error.colno}){hint}"
        return RowError("one JSON object per line", got)
    if isinstance(value, dict):
        return value
    return RowError("one JSON object per line", f"a JSON {type(value).__name__}{hint}")
