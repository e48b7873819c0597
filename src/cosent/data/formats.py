"""Records of a file (txt, tsv, csv, jsonl, JSON arrays, Parquet, xlsx), as a stream with their line numbers."""

import csv
import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from cosent.errors import InputError, reading

logger = logging.getLogger(__name__)

FORMATS = {
    **{".txt": "txt", ".tsv": "tsv", ".data": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx"},
}
TEXT_FORMATS = ("txt", "tsv", "csv", "jsonl")  # may be compressed, as .csv.gz
KEYED = ("jsonl", "parquet")  # formats whose rows name their columns
ENCODINGS = ("utf-8", "gb18030", "utf-16")  # of text; GB18030 includes GBK and GB2312
QUOTED_OR_PLAIN = r'(?:"[^"]*(?:""[^"]*)*"|[^"\t]*)'  # a field of TSV that csv wrote
QUOTED_ROW = re.compile(f"{QUOTED_OR_PLAIN}(?:\t{QUOTED_OR_PLAIN})*")

PARQUET_ROWS = 1000  # decoded at a time
ARRAY = re.compile(r"\s*\[\s*(\{|$)")  # first line of a JSON array of objects
BETWEEN_ITEMS = re.compile(r"[\s,]*")


class RowError(InputError):
    """Error for a row that cannot be used: `expected {expected}, got {got}`."""

    def __init__(self, expected: str, got: object):
        super().__init__(f"expected {expected}, got {got}")


class ErrorCell(str):
    """An error value of a spreadsheet, as `#N/A`: text, but no sentence."""


def is_blank(text: str) -> bool:
    """Whether a text holds nothing to read: it is empty, or has only spaces, controls and zero-width characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


Line = tuple[int, str]
# line number, text (not of Parquet), and the fields (None: blank) or what is wrong with them
Record = tuple[int, str, list | dict | RowError | None]


@dataclass(frozen=True)
class FileOptions:
    """The sheet of a workbook (default: the only one with content), the encoding of text, and whether TSV is quoted."""

    sheet: str | None = None
    encoding: str = "utf-8"
    quoted: bool | None = None  # None: not looked at, and read as it is


AS_USUAL = FileOptions()


def ending_of(path: str | Path) -> str:
    """The ending of a file's name in small letters: `.tsv`, or `.tsv.gz` of a compressed one."""
    name = Path(path).name.lower()
    ending = Path(name.removesuffix(".gz")).suffix
    return f"{ending}.gz" if name.endswith(".gz") else ending


def format_of(path: str | Path) -> str | None:
    """The format of a file by its ending; None if it is none of `FORMATS`, or compressed and not text."""
    ending = ending_of(path)
    format = FORMATS.get(ending.removesuffix(".gz"))
    return None if ending.endswith(".gz") and format not in TEXT_FORMATS else format


def place(path: Path | str, format: str, number: int) -> str:
    """A record in words, for errors."""
    return f"{path}, {'row' if format in ('parquet', 'xlsx') else 'line'} {number}"


def as_text(row: object) -> str:
    """A row as JSON."""
    return json.dumps(row, ensure_ascii=False, default=str)


def read_records(
    path: Path, format: str, columns: Sequence[str] | None = None, options: FileOptions = AS_USUAL
) -> Iterator[Record]:
    """Splits a file into records.

    Args:
        format: `txt` (a line is the only field), `tsv` (tabs), `csv`, `jsonl` (or one JSON array), `parquet` or `xlsx`;
            of the last two, line numbers are those of rows.
        columns: of `parquet`, those to read; default: all.
    """
    if options.sheet is not None and format != "xlsx":
        raise InputError(f"--sheet {options.sheet}: {path} is {format} and has no sheets. Leave it out.")
    if options.encoding != "utf-8" and format not in TEXT_FORMATS:
        raise InputError(f"--encoding: {path} is {format}, which is not text. Leave it out.")
    if format == "parquet":
        return _read_parquet(path, columns)
    if format == "xlsx":
        return _read_xlsx(path, options.sheet)
    lines = read_lines(path, options.encoding)
    if format == "csv" or (format == "tsv" and options.quoted):
        records = _read_csv(lines, "," if format == "csv" else "\t")
    elif format == "jsonl":
        records = _read_json(path, lines)
    else:
        split = {"txt": lambda text: [text], "tsv": lambda text: text.split("\t")}[format]
        records = _read_by_line(lines, split)
    return ((number, text, undecoded(text, fields, options.encoding) or fields) for number, text, fields in records)


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    Bytes of another encoding come back as lone surrogates, for `undecoded` to report with their line.
    """
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding=encoding, errors="surrogateescape", newline="\n") as file:  # type: ignore[operator]
        try:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix("\ufeff") if number == 1 else line  # a byte order mark
                yield number, line.removesuffix("\n").removesuffix("\r")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path} is not a complete gzip file: {error}. Compress or copy it again.") from error
        except UnicodeError as error:
            raise InputError(f"{path} is not {encoding} ({error}). Name its --encoding, e.g. gb18030.") from error


def undecoded(text: str, fields: object, encoding: str) -> RowError | None:
    """Error for text with bytes of another encoding, or JSON with half of a character, as \\ud83d is of an emoji."""
    try:
        (as_text(fields) if "\\u" in text else text).encode("utf-8")
        return None
    except UnicodeEncodeError as error:
        others = " or ".join(other for other in ENCODINGS if other != encoding)
        got = f"something else from character {error.start + 1} on. Save it as UTF-8, or pass --encoding {others} to "
        got += "prepare, similarity or evaluate"
        return RowError(encoding.upper(), got)


def _read_by_line(lines: Iterator[Line], split) -> Iterator[Record]:
    return ((number, text, None if is_blank(text) else split(text)) for number, text in lines)


def _read_json(path: Path, lines: Iterator[Line]) -> Iterator[Record]:
    """JSON lines as a stream, or the items of one JSON array, whose text is held in memory."""
    head = []
    for number, text in lines:
        head.append((number, text))
        if not is_blank(text):
            break
    lines = chain(head, lines)
    if head and ARRAY.match(head[-1][1]):
        return _read_json_array(path, "\n".join(text for _, text in lines))
    return _read_by_line(lines, _json_row)


def _read_json_array(path: Path, text: str) -> Iterator[Record]:
    """The items of a JSON array, with the lines on which they begin."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}, line {line}: not a JSON array of objects ({error}). Correct it.") from error
    decoder, number, counted, end = json.JSONDecoder(), 1, 0, text.index("[") + 1
    while text[start := BETWEEN_ITEMS.match(text, end).end()] != "]":  # type: ignore[union-attr]  # "" matches too
        number, counted = number + text.count("\n", counted, start), start
        _, end = decoder.raw_decode(text, start)
        yield number, text[start:end], _json_row(text[start:end])


def _json_row(text: str) -> dict | RowError:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return RowError("one JSON object per line", f"text that cannot be read ({error})")
    return value if isinstance(value, dict) else RowError("one JSON object per line", f"a {type(value).__name__}")


def with_quoting(path: Path, format: str, options: FileOptions) -> FileOptions:
    """The options, with what was found out about the quotes of TSV, which is read to its end for that.

    A table program quotes each text with a quote or a line break in it, some also those with a comma. So a file is
    quoted if all of its quotes are such ones and some text needed them, or if both texts of line 1 have them. Else
    quotes are part of the texts.
    """
    if format != "tsv" or options.quoted is not None:
        return options
    first, width = None, 0  # line of the first text that needed quotes; fields of the first row
    for number, text, fields in _read_csv(read_lines(path, options.encoding), "\t"):
        if fields is None or (width and '"' not in text):
            continue
        if (
            isinstance(fields, RowError)
            or len(fields) != (width := width or len(fields))
            or not QUOTED_ROW.fullmatch(text)
        ):
            if first is not None:
                logger.warning("%s: line %d has quotes of csv, line %d others: all are kept.", path, first, number)
            return replace(options, quoted=False)
        needed = any(
            "\t" not in field and (set(field) & set('"\n') or ("," in field and f'"{field}"' in text))
            for field in fields
        )
        if first is None and (needed or (number == 1 and text.startswith('"') and '"\t"' in text)):
            first = number
    return replace(options, quoted=first is not None)


def _read_csv(lines: Iterator[Line], delimiter: str) -> Iterator[Record]:
    """A quoted sentence may span several lines, of which the first is named; a stray quote makes each of them bad."""
    consumed: list[str] = []

    def texts() -> Iterator[str]:
        for _, text in lines:
            consumed.append(text)
            yield text + "\n"

    reader = csv.reader(texts(), strict=True, delimiter=delimiter)
    while True:
        start = reader.line_num + 1
        consumed.clear()
        try:
            fields = next(reader, None)
        except csv.Error as error:
            problem = RowError("comma-separated values, with quotes doubled inside quotes", error)
        else:
            if fields is None:
                return
            if not _joins_rows(consumed, len(fields), delimiter):
                yield start, "\n".join(consumed), fields or None
                continue
            problem = RowError("a quote closed where its sentence ends", f"one closed {len(consumed) - 1} rows later")
        yield from ((number, line, problem) for number, line in enumerate(consumed, start))


def _joins_rows(lines: list[str], width: int, delimiter: str) -> bool:
    """Whether the lines of one record look like rows that a stray quote joins: first, last and one between."""
    rows = [line.count(delimiter) == width - 1 > 0 for line in lines]
    return len(lines) > 2 and rows[0] and rows[-1] and any(rows[1:-1])


def open_parquet(path: Path):
    """A `pyarrow.parquet.ParquetFile`."""
    import pyarrow.parquet

    with reading(path, pyarrow.ArrowException, advice="Rename it if it is no Parquet file, or copy it again."):
        return pyarrow.parquet.ParquetFile(path)


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    import pyarrow

    with open_parquet(path) as file, reading(path, pyarrow.ArrowException, advice="Copy it again."):
        batches = file.iter_batches(batch_size=PARQUET_ROWS, columns=columns and list(columns))
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, "", row


def import_openpyxl(path: str | Path):
    """The library for xlsx."""
    try:
        import openpyxl
    except ImportError as error:
        raise InputError(f"{path}: xlsx needs openpyxl. Run pip install 'cosent[xlsx]', or save it as CSV.") from error
    return openpyxl


def _read_xlsx(path: Path, title: str | None) -> Iterator[Record]:
    """The rows of a sheet, as wide as its first one. Empty rows at the end do not count."""
    width, blank = 0, 0
    for number, row in enumerate(_sheet_rows(path, title), start=1):
        cells = list(row)
        while cells and cells[-1] is None:
            cells.pop()
        if not cells:
            blank += 1
            continue
        yield from ((earlier, "", None) for earlier in range(number - blank, number))
        width, blank = width or len(cells), 0
        cells += [None] * (width - len(cells))
        fields = cells if len(cells) == width else RowError(f"{width} cells, as in the first row", len(cells))
        yield number, as_text(cells), fields


def _sheet_rows(path: Path, title: str | None) -> Iterator[tuple]:
    """The rows of a workbook's sheet, or of its only one with content."""
    openpyxl = import_openpyxl(path)
    with reading(path, openpyxl.utils.exceptions.InvalidFileException, advice="Save it again, or as CSV (UTF-8)."):
        yield from _rows_of(openpyxl.load_workbook(path, read_only=True, data_only=True), path, title)


def _rows_of(book, path: Path, title: str | None) -> Iterator[tuple]:
    """The rows of an open workbook, see `_sheet_rows`."""
    titles = [sheet.title for sheet in book.worksheets]
    if title is None:
        titles = [sheet.title for sheet in book.worksheets if any(map(any, sheet.iter_rows(values_only=True)))]
    chosen = [one for one in titles if title in (None, one)]
    if len(chosen) > 1 or (title is not None and not chosen):
        raise InputError(f"{path} has the sheets {', '.join(titles)}. Name one of them with --sheet.")
    rows = book[chosen[0]].iter_rows() if chosen else iter(())
    return (tuple(ErrorCell(cell.value) if cell.data_type == "e" else cell.value for cell in row) for row in rows)
