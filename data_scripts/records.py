"""Read the records of a raw file: TSV, CSV, JSON lines or Parquet, each with its line and its text."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from cosent.errors import InputError
from data_scripts.checks import RowError, not_utf8

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PARQUET_ROWS = 1000  # decoded at a time

Record = tuple[int, str, list | dict | RowError]  # line number, its text, its fields (or why it has none)


def place(path: Path | str, format: str, number: int) -> str:
    """A record in words, for errors."""
    return f"{path}, {'row' if format == 'parquet' else 'line'} {number}"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    Bytes that are not UTF-8 come back as lone surrogates, for `check_text` to report with their line.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="surrogateescape")


def read_records(path: Path, format: str) -> Iterator[Record]:
    """Splits a file into records; a blank line has no fields.

    Args:
        format: `tsv`, `csv`, `jsonl` or `parquet`, whose line numbers are those of rows.

    Raises:
        InputError: `parquet`, and the file is another one.
    """
    readers = {"csv": _read_csv, "parquet": _read_parquet}
    for number, text, fields in readers[format](path) if format in readers else _read_by_line(path, format):
        yield number, text, not_utf8(text) or fields


def _read_by_line(path: Path, format: str) -> Iterator[Record]:
    for number, text in read_lines(path):
        if not text.strip():
            yield number, text, []
        else:
            yield number, text, text.split("\t") if format == "tsv" else _json_object(text)


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


def _read_parquet(path: Path) -> Iterator[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file ({error}). Name its format with --format.") from error
    with file:
        rows = (row for batch in file.iter_batches(batch_size=PARQUET_ROWS) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield number, json.dumps(row, ensure_ascii=False, default=str), row


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
