"""Records of a file (txt, tsv, csv, jsonl, Parquet, xlsx), as a stream with their line numbers."""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from cosent.errors import InputError, reading

FORMATS = {
    **{".txt": "txt", ".tsv": "tsv", ".data": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx"},
}
TEXT_FORMATS = ("txt", "tsv", "csv", "jsonl")  # may be compressed, as .csv.gz
KEYED = ("jsonl", "parquet")  # formats whose rows name their columns
ENCODINGS = ("utf-8", "gb18030", "utf-16")  # of text; GB18030 includes GBK and GB2312
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    "\ufeff".encode("gb18030"): "gb18030",
}
ZIP = b"PK\x03\x04"  # first bytes of an archive, and so of a workbook
SEPARATORS = ",;\t"  # of CSV, the most common first
QUOTED = re.compile(r'(?:^|\t)"(?=[^\t]*"")(?:[^"\t]|"")+"(?:\t|$)')  # a field with doubled quotes inside quotes

PARQUET_ROWS = 1000  # decoded at a time
JSON_LINES = "Write one object per line, e.g. with jq -c '.[]' (or '.data[]' for rows under the key data)."


class RowError(InputError):
    """Error for a row that cannot be used: `expected {expected}, got {got}`, and the `remedy` for such faults."""

    def __init__(self, expected: str, got: object, remedy: str = "Correct or remove it."):
        super().__init__(f"expected {expected}, got {got}")
        self.got, self.remedy = got, remedy


class ErrorCell(str):
    """An error value of a spreadsheet, as `#N/A`: text, but no sentence."""


def is_blank(text: str) -> bool:
    """Whether a text holds nothing to read: it is empty, or has only spaces, controls and zero-width characters."""
    return not any(character.isprintable() and not character.isspace() for character in text)


Line = tuple[int, str]
# line number, text (not of Parquet), and the fields (None: blank) or their fault
Record = tuple[int, str, list | dict | RowError | None]


@dataclass(frozen=True)
class FileOptions:
    """How to read a file.

    Args:
        sheet: sheet of a workbook; default: the only one with content.
        encoding: encoding of text without a byte order mark.
        header: whether line 1 holds the names of columns; default: detected by `find_columns`.
        any_quotes: accept rows of TSV that look quoted by a spreadsheet; their quotes are part of the texts.
    """

    sheet: str | None = None
    encoding: str = "utf-8"
    header: bool | None = None
    any_quotes: bool = False


AS_USUAL = FileOptions()


def format_of(path: str | Path) -> str | None:
    """The format of a file by its ending; None if it is none of `FORMATS`, or compressed and not text."""
    name = Path(path).name.lower()
    format = FORMATS.get(Path(name.removesuffix(".gz")).suffix)
    return None if name.endswith(".gz") and format not in TEXT_FORMATS else format


def known_format(path: str | Path, flag: str) -> str:
    """As `format_of`, for the file of a flag."""
    format = format_of(path)
    if format is None:
        raise InputError(
            f"{flag} {path}: expected a file that ends in {', '.join(FORMATS)}, text also in .gz. Rename or convert it."
        )
    return format


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
        format: `txt` (a line is the only field), `tsv` (tabs), `csv`, `jsonl`, `parquet` or `xlsx`; of the last two,
            rows are counted in place of lines.
        columns: of `parquet`, those to read; default: all.
    """
    if options.sheet is not None and format != "xlsx":
        raise InputError(f"--sheet {options.sheet}: {path} is {format} and has no sheets. Leave it out.")
    if format == "parquet":
        return _read_parquet(path, columns)
    if format == "xlsx":
        return _read_xlsx(path, options.sheet)
    lines = read_lines(path, options.encoding)
    if format == "csv":
        records = _read_csv(lines)
    else:
        split = {"txt": lambda text: [text], "tsv": lambda text: text.split("\t"), "jsonl": _json_row}[format]
        records = ((number, text, None if is_blank(text) else split(text)) for number, text in lines)
        if format == "tsv" and not options.any_quotes:
            records = ((number, text, quoted(number, text) or fields) for number, text, fields in records)
    return ((number, text, undecoded(text, fields, options.encoding) or fields) for number, text, fields in records)


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    A byte order mark decides the encoding. Bytes of another one come back as lone surrogates, for `undecoded` to report
    with their line.
    """
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rb") as file:
            start = file.read(4)
        if start == ZIP:
            raise InputError(f"{path} is a workbook or a ZIP archive, not text. Rename it to .xlsx, or unpack it.")
        encoding = codec_of(encoding)
        encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if start.startswith(mark)), encoding)
        with opened(path, "rt", encoding=encoding, errors="surrogateescape", newline="\n") as file:  # type: ignore[operator]
            yield from numbered(file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is not a complete gzip file: {error}. Compress or copy it again.") from error
    except UnicodeError as error:
        raise InputError(f"{path} is not {encoding} ({error}). Save it as UTF-8.") from error


def codec_of(encoding: str) -> str:
    """Python's name of the encoding of a flag: its utf-16 needs a byte order mark."""
    return "utf-16-le" if encoding == "utf-16" else encoding


def numbered(lines: Iterable[str]) -> Iterator[Line]:
    """Lines numbered from 1, without a byte order mark and their ends."""
    for number, line in enumerate(lines, start=1):
        line = line.removeprefix("\ufeff") if number == 1 else line
        yield number, line.removesuffix("\n").removesuffix("\r")


def undecoded(text: str, fields: object, encoding: str) -> RowError | None:
    """Error for text with bytes of another encoding, or JSON with half of a character, as \\ud83d is of an emoji."""
    try:
        (as_text(fields) if "\\u" in text else text).encode("utf-8")
        return None
    except UnicodeEncodeError as error:
        if re.search("[\udc80-\udcff]", text) is None:  # no byte of another encoding
            return RowError("whole characters", "half of one, as \\ud83d is of an emoji")
        other = "utf-8" if encoding != "utf-8" else "utf-16" if "\0" in text else "gb18030"
        return RowError(
            encoding.upper(),
            f"something else from character {error.start + 1} on",
            f"Save the file as UTF-8, or pass --encoding {other}, where a job has it.",
        )


def quoted(number: int, text: str) -> RowError | None:
    """Error for a row of TSV with the quotes of a spreadsheet: both texts of line 1, or a text with doubled quotes."""
    if QUOTED.search(text) or (number == 1 and text.startswith('"') and '"\t"' in text):
        got, remedy = "quotes as a spreadsheet writes them", "Save it as .csv, where quotes are read."
        return RowError("plain text between tabs", got, remedy)
    return None


def _json_row(text: str) -> dict | RowError:
    expected = "one JSON object per line"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.strip() in ("{", "["):
            return RowError(expected, "one value over several lines", JSON_LINES)
        return RowError(expected, f"text that cannot be read ({error})")
    return value if isinstance(value, dict) else RowError(expected, f"a {type(value).__name__}", JSON_LINES)


def _read_csv(lines: Iterator[Line]) -> Iterator[Record]:
    """Rows of CSV, separated as line 1 is: by commas, or else semicolons or tabs.

    A quoted sentence may span several lines, and errors name its first; a stray quote makes all its lines bad.
    """
    head = list(islice(lines, 1))
    unquoted = re.sub(r'"[^"]*"', "", head[0][1]) if head else ""
    separator = next((mark for mark in SEPARATORS if mark in unquoted), ",")
    consumed: list[str] = []

    def texts() -> Iterator[str]:
        for _, text in chain(head, lines):
            consumed.append(text)
            yield text + "\n"

    reader = csv.reader(texts(), strict=True, delimiter=separator)
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
            if not _joins_rows(consumed, len(fields), separator):
                yield start, "\n".join(consumed), fields or None
                continue
            problem = RowError("a quote closed where its sentence ends", f"one closed {len(consumed) - 1} rows later")
        yield from ((number, line, problem) for number, line in enumerate(consumed, start))


def _joins_rows(lines: list[str], width: int, separator: str) -> bool:
    """Whether the lines of one record look like rows that a stray quote joins: first, last and one between."""
    rows = [line.count(separator) == width - 1 > 0 for line in lines]
    return len(lines) > 2 and rows[0] and rows[-1] and any(rows[1:-1])


def open_parquet(path: Path):
    """A `pyarrow.parquet.ParquetFile`."""
    import pyarrow.parquet

    with reading(path, advice="Rename it if it is no Parquet file, or copy it again."):
        return pyarrow.parquet.ParquetFile(path)


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    with open_parquet(path) as file, reading(path, advice="Copy it again."):
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
        remedy = "If the first row is a title, delete it." if width == 1 else "Correct or remove it."
        fields = cells if len(cells) == width else RowError(f"{width} cells, as in the first row", len(cells), remedy)
        yield number, as_text(cells), fields


def _sheet_rows(path: Path, title: str | None) -> Iterator[tuple]:
    """The rows of a workbook's sheet, or of its only one with content."""
    openpyxl = import_openpyxl(path)
    with reading(path, advice="Save it again, or as CSV (UTF-8)."):
        sheets = openpyxl.load_workbook(path, read_only=True, data_only=True).worksheets
        titles = ", ".join(sheet.title for sheet in sheets)
        for sheet in sheets:
            sheet.reset_dimensions()  # programs that stream rows state a range of one cell
        if title is None:
            sheets = [sheet for sheet in sheets if any(map(any, sheet.iter_rows(values_only=True)))]
        else:
            sheets = [sheet for sheet in sheets if sheet.title == title]
        if len(sheets) > 1 or (title is not None and not sheets):
            raise InputError(f"{path} has the sheets {titles}. Name one of them with --sheet.")
        for row in (row for sheet in sheets for row in sheet.iter_rows()):
            yield tuple(ErrorCell(cell.value) if cell.data_type == "e" else cell.value for cell in row)
