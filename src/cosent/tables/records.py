"""Read the records of a file: txt, TSV, CSV, JSON lines, Parquet or xlsx, each with its line and its text."""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from cosent.errors import InputError
from cosent.tables.formats import AS_USUAL, TEXT_FORMATS, FileOptions, import_openpyxl

BYTE_ORDER_MARK = "\ufeff"
PARQUET_ROWS = 1000  # decoded at a time
ARRAY = re.compile(r"\s*\[\s*(\{|$)")  # first line of a JSON array of objects
SPACES = re.compile(r"\s*")
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class RowError(InputError):
    """Error for a row that cannot be used; the message is `expected {expected}, got {got}`."""

    def __init__(self, expected: str, got: str):
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got = expected, got


Line = tuple[int, str]
Record = tuple[int, str, list | dict | RowError]  # line number, its text, its fields (or why it has none)


def place(path: Path | str, format: str, number: int) -> str:
    """A record in words, for errors."""
    return f"{path}, {'row' if format in ('parquet', 'xlsx') else 'line'} {number}"


def not_utf8(text: str) -> RowError | None:
    """Error for text, decoded with `surrogateescape`, that was not UTF-8; None if it was."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        remedy = "save it as UTF-8 (Excel: CSV UTF-8), or pass --encoding to prepare, similarity or evaluate"
        if (guess := as_gb18030(text)) is not None:
            remedy = f"as GB18030 the line reads {guess[:40]!r}: {remedy.replace('--encoding', '--encoding gb18030')}"
        elif "\0" in text:
            remedy = f"UTF-16? {remedy.replace('--encoding', '--encoding utf-16')}"
        return RowError("UTF-8", f"other bytes from character {error.start + 1} on ({remedy})")
    return None


def as_gb18030(text: str) -> str | None:
    """Text that was decoded with `surrogateescape`, as GB18030; None if it is none."""
    try:
        return text.encode("utf-8", errors="surrogateescape").decode("gb18030")
    except UnicodeError:
        return None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    Bytes of another encoding come back as lone surrogates, for `not_utf8` to report with their line.

    Raises:
        InputError: a damaged gzip file, or one that is not UTF-16 where that was named.
    """
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding=encoding, errors="surrogateescape", newline="\n") as file:  # type: ignore[operator]
        try:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                yield number, line.removesuffix("\n").removesuffix("\r")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(
                f"{path} is not a complete gzip file: {error}. The sentences after this point would be missing. "
                "Compress or copy it again."
            ) from error
        except UnicodeError as error:
            raise InputError(f"{path} is not {encoding} ({error}). Name its own --encoding.") from error


def read_records(
    path: Path, format: str, columns: Sequence[str] | None = None, options: FileOptions = AS_USUAL
) -> Iterator[Record]:
    """Splits a file into records; a blank line has no fields.

    Args:
        format: `txt` (a line is the only field), `tsv` (tabs, never quoted), `csv`, `jsonl` (or one JSON array),
            `parquet` or `xlsx`; of the last two, line numbers are those of rows.
        columns: of `parquet`, those to read; default: all.

    Raises:
        InputError: `parquet` or `xlsx`, and the file is another one; a damaged file; options of another format.
    """
    if options.sheet is not None and format != "xlsx":
        raise InputError(f"--sheet {options.sheet}: {path} is {format} and has no sheets. Leave it out.")
    if options.encoding != AS_USUAL.encoding and format not in TEXT_FORMATS:
        raise InputError(f"--encoding {options.encoding}: {path} is {format}, which is not text. Leave it out.")
    for number, text, fields in _records(path, format, columns, options):
        problem = not_utf8(text)
        if problem is not None and options.encoding != AS_USUAL.encoding:
            problem = RowError(f"text in {options.encoding}", "other bytes (leave --encoding out if it is UTF-8)")
        yield number, text, problem or fields


def _records(path: Path, format: str, columns: Sequence[str] | None, options: FileOptions) -> Iterator[Record]:
    if format == "parquet":
        return _read_parquet(path, columns)
    if format == "xlsx":
        return _read_xlsx(path, options.sheet)
    lines = read_lines(path, options.encoding)
    if format == "csv":
        return _read_csv(lines)
    if format == "jsonl":
        return _read_json(path, lines)
    return _read_by_line(lines, format)


def _read_by_line(lines: Iterable[Line], format: str) -> Iterator[Record]:
    split = {"txt": lambda text: [text], "tsv": lambda text: text.split("\t"), "jsonl": _json_line}[format]
    for number, text in lines:
        yield number, text, split(text) if text.strip() else []


def _read_json(path: Path, lines: Iterator[Line]) -> Iterator[Record]:
    """JSON lines as a stream, or the items of one JSON array, whose text is held in memory."""
    head = []
    for number, text in lines:
        head.append((number, text))
        if text.strip():
            break
    if head and ARRAY.match(head[-1][1]):
        return _read_json_array(path, "\n".join(text for _, text in chain(head, lines)))
    return _read_by_line(chain(head, lines), "jsonl")


def _read_json_array(path: Path, text: str) -> Iterator[Record]:
    """The items of a JSON array, with the lines on which they begin.

    Raises:
        InputError: text that is not JSON, after which no item can be found.
    """
    decoder = json.JSONDecoder()
    opening = text.index("[")
    end, number, separator = opening, 1 + text.count("\n", 0, opening), ","
    while separator == ",":
        start = SPACES.match(text, end + 1).end()  # type: ignore[union-attr]  # no space is a match, too
        number += text.count("\n", end, start)
        try:
            value, end = decoder.raw_decode(text, start)
            item = _json_object(value, text[start:end])
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: expected a JSON object, got other text ({error}).") from error
        yield number, text[start:end], item
        number += text.count("\n", start, end)
        start, end = end, SPACES.match(text, end).end()  # type: ignore[union-attr]
        number += text.count("\n", start, end)
        separator = text[end : end + 1]
    if separator != "]" or text[end + 1 :].strip():
        rest = text[end if separator != "]" else end + 1 :].strip()
        raise InputError(f"{path}, line {number}: expected the end of the JSON array, got {rest[:40]!r}. Correct it.")


def _read_csv(lines: Iterator[Line]) -> Iterator[Record]:
    consumed: list[str] = []

    def texts() -> Iterator[str]:
        for _, text in lines:
            consumed.append(text)
            yield text + "\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        start = reader.line_num + 1  # a quoted sentence may span several lines; errors name the first
        consumed.clear()
        try:
            fields: list | RowError = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fields = RowError("comma-separated values, with quotes doubled inside quotes", str(error))
        if not isinstance(fields, RowError) and _joins_rows(consumed, len(fields)):
            got = f"a quote that closes {len(consumed) - 1} lines further on, across lines that look like rows"
            fields = RowError("a quote closed where its sentence ends", got)
        if isinstance(fields, RowError):
            for number, line in enumerate(consumed, start):
                yield number, line, fields
            continue
        yield start, "\n".join(consumed), fields


def _joins_rows(lines: list[str], width: int) -> bool:
    """Whether the lines of one record look like rows of `width` fields that a stray quote joins.

    The first must be such a row if its last quote is taken for a character, the last one likewise, and any between.
    """
    if width == 1 or len(lines) < 3:
        return False
    *before, opened = _fields(lines[0])
    closed, *after = _fields('"' + lines[-1])
    outer = {len(before) + 1 + opened.count(","), closed.count(",") + 1 + len(after)}
    return outer == {width} and any(len(_fields(line)) == width for line in lines[1:-1])


def _fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [""])
    except csv.Error:
        return [line]


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


def _read_xlsx(path: Path, sheet: str | None) -> Iterator[Record]:
    """The rows of a sheet, as wide as its first one. Empty rows at the end do not count."""
    width, empty = 0, []
    for number, row in enumerate(sheet_rows(path, sheet), start=1):
        cells = list(row)
        while cells and cells[-1] is None:
            cells.pop()
        if not cells:
            empty.append(number)
            continue
        for blank in empty:
            yield blank, "", []
        empty = []
        width = width or len(cells)
        cells += [None] * (width - len(cells))
        fields = cells if len(cells) == width else RowError(f"{width} cells, as in the first row", f"{len(cells)}")
        yield number, as_text(cells), fields


def sheet_rows(path: Path, sheet: str | None) -> Iterator[tuple]:
    """The rows of a workbook's sheet, or of its only one with content.

    Raises:
        InputError: openpyxl is missing, the file is another one, no such sheet, or several with content.
    """
    openpyxl = import_openpyxl(path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (openpyxl.utils.exceptions.InvalidFileException, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InputError(f"{path} is not an xlsx workbook ({error}). Save it again, or as CSV (UTF-8).") from error
    if sheet is None:
        filled = [one for one in book.worksheets if any(map(any, one.iter_rows(values_only=True)))]
    else:
        filled = [one for one in book.worksheets if one.title == sheet]
    titles = ", ".join(one.title for one in filled or book.worksheets)
    if sheet is not None and not filled:
        raise InputError(f"--sheet {sheet}: {path} has the sheets {titles}. Name one of them.")
    if len(filled) > 1:
        raise InputError(
            f"{path} has several sheets ({titles}). Name one with --sheet (prepare, similarity, evaluate), or save it "
            "as a file of its own."
        )
    return filled[0].iter_rows(values_only=True) if filled else iter(())


def as_text(row: object) -> str:
    """A row as JSON, for errors."""
    return json.dumps(row, ensure_ascii=False, default=str)


def _json_line(text: str) -> dict | RowError:
    try:
        return _json_object(json.loads(text), text)
    except json.JSONDecodeError as error:
        return RowError("one JSON object per line", f"text that is not JSON ({error.msg}, column {error.colno})")
    except (ValueError, RecursionError) as error:
        return RowError("one JSON object per line", f"one that cannot be read ({error})")


def _json_object(value: object, text: str) -> dict | RowError:
    if not isinstance(value, dict):
        return RowError("one JSON object per line", f"a JSON {type(value).__name__}")
    if SURROGATE.search(text) and not_utf8(as_text(value)):
        return RowError("UTF-8", "half of a character, as \\ud83d is of an emoji")
    return value
