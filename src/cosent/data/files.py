"""Tables of sentences: read as a stream by column names, and written; no row is skipped in silence."""

import csv
import gzip
import json
import logging
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cosent.cli import option
from cosent.errors import InputError, partial_file, writing

logger = logging.getLogger(__name__)

FORMATS = {
    **{".txt": "txt", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx"},
}
TEXT_FORMATS = ("txt", "tsv", "csv", "jsonl")  # may be compressed, as .csv.gz
KEYED = ("jsonl", "parquet")  # formats whose rows name their columns
ENCODINGS = ("utf-8", "gb18030", "utf-16")  # of text; GB18030 includes GBK and GB2312

_NOUNS = ("句子", "文本", "问题")
TEXT_NAMES = ("text", "sentence", "文本", "句子")  # of columns that are found without being asked for
SENTENCE1_NAMES = (
    *("sentence1", "text1", "s1", "premise", "query1", "question1", "query", "anchor"),
    *(noun + number for noun in _NOUNS for number in "1一"),
)
SENTENCE2_NAMES = (
    *("sentence2", "text2", "s2", "hypothesis", "query2", "question2", "passage", "document"),
    *(noun + number for noun in _NOUNS for number in "2二"),
)
LABEL_NAMES = ("gold_label", "label", "score", "similarity", "gold", "标签", "相似", "是否相似", "分数")
SCORE_NAMES = ("score", "reranker_score", "similarity", "分数")  # of a model, never the label next to them
SENTENCE, PAIR = (TEXT_NAMES,), (SENTENCE1_NAMES, SENTENCE2_NAMES)  # what is looked for in a table
LABEL_WORDS = {"是": "1", "否": "0", "相似": "1", "不相似": "0", "true": "1", "false": "0", "yes": "1", "no": "0"}

PARQUET_ROWS = 1000  # decoded at a time
XLSX_ROWS = 1_048_576  # with the names
ARRAY = re.compile(r"\s*\[\s*(\{|$)")  # first line of a JSON array of objects
BETWEEN_ITEMS = re.compile(r"[\s,]*")
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
SEPARATORS = {
    "\t": "tabs: rename the file to .tsv, or pass --format tsv to prepare",
    ",": "commas: rename the file to .csv, or pass --format csv to prepare",
    ";": "semicolons, which no format here has: save it as xlsx, or with commas",
}


class RowError(InputError):
    """Error for a row that cannot be used; the message is `expected {expected}, got {got}`."""

    def __init__(self, expected: str, got: str):
        super().__init__(f"expected {expected}, got {got}")
        self.expected, self.got = expected, got


Line = tuple[int, str]
Record = tuple[int, str, list | dict | RowError]  # line number, its text, its fields (or why it has none)
Write = Callable[[list[dict]], None]


@dataclass(frozen=True)
class FileOptions:
    """What a file does not say about itself.

    Args:
        sheet: the sheet of an xlsx workbook to read; default: the only one with content.
        encoding: of text, one of `ENCODINGS`.
    """

    sheet: str | None = None
    encoding: str = "utf-8"


AS_USUAL = FileOptions()


@dataclass
class TableArguments:
    """What the file of --pairs does not say about itself."""

    sheet: str | None = option(None, "Sheet to read of a workbook with several.")
    encoding: str = option("utf-8", "Encoding of text.", ENCODINGS)
    label_values: list[str] | None = option(
        None, "All labels and what they stand for, as in 否=0 是=1; default: numbers, and 是, 相似, true, yes as 1, "
        "否, 不相似, false, no as 0.", commas=True,
    )  # fmt: skip

    @property
    def options(self) -> FileOptions:
        return FileOptions(self.sheet, self.encoding)


OF_TABLES = ("sheet", "encoding", "label_values")


def ending_of(path: str | Path) -> str:
    """The ending of a file's name in small letters: `.tsv`, or `.tsv.gz` of a compressed one."""
    name = Path(path).name.lower()
    return Path(name.removesuffix(".gz")).suffix + ".gz" * name.endswith(".gz")


def stem_of(path: str | Path) -> str:
    """The name of a file without its ending: `part-1` of `a/part-1.csv.gz`."""
    name = Path(path).name
    return name[: len(name) - len(ending_of(path))]


def format_of(path: str | Path, formats: dict[str, str] = FORMATS) -> str | None:
    """The format of a file by its ending; None if it is none of `formats`, or compressed and not text."""
    ending = ending_of(path)
    format = formats.get(ending.removesuffix(".gz"))
    return None if ending.endswith(".gz") and format not in TEXT_FORMATS else format


def known_format(path: str | Path, flag: str) -> str:
    """As `format_of`, for the file of a flag.

    Raises:
        InputError: another ending.
    """
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
    """A row as JSON, for errors."""
    return json.dumps(row, ensure_ascii=False, default=str)


def separator_hint(fields: Sequence[object]) -> str:
    """What to do about line 1 of a TSV or CSV file that other characters separate; empty if none do."""
    line = str(fields[0]) if len(fields) == 1 else ""
    return next((f" Line 1 holds {advice}." for separator, advice in SEPARATORS.items() if separator in line), "")


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
    if format == "parquet":
        records = _read_parquet(path, columns)
    elif format == "xlsx":
        records = _read_xlsx(path, options.sheet)
    else:
        split = {"csv": _read_csv, "jsonl": lambda lines: _read_json(path, lines)}
        records = split.get(format, lambda lines: _read_by_line(lines, format))(read_lines(path, options.encoding))
    for number, text, fields in records:
        problem = undecoded(text)
        if problem is not None and options.encoding != AS_USUAL.encoding:
            problem = RowError(f"text in {options.encoding}", "other bytes (leave --encoding out if it is UTF-8)")
        yield number, text, problem or fields


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Lines numbered from 1, ended only by LF or CRLF: U+2028 or a form feed belongs to a sentence.

    Bytes of another encoding come back as lone surrogates, for `undecoded` to report with their line.

    Raises:
        InputError: a damaged gzip file, or one that is not UTF-16 where that was named.
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
            raise InputError(f"{path} is not {encoding} ({error}). Name its own --encoding.") from error


def undecoded(text: str) -> RowError | None:
    """Error for text, decoded with `surrogateescape`, that was not UTF-8; None if it was."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        remedy = "save it as UTF-8 (Excel: CSV UTF-8), or pass --encoding{} to prepare, similarity or evaluate"
        if (guess := as_gb18030(text)) is not None:
            remedy = f"as GB18030 the line reads {guess[:40]!r}: {remedy.format(' gb18030')}"
        elif "\0" in text:
            remedy = f"UTF-16? {remedy.format(' utf-16')}"
        return RowError("UTF-8", f"other bytes from character {error.start + 1} on ({remedy.format('')})")
    return None


def as_gb18030(text: str) -> str | None:
    """Text that was decoded with `surrogateescape`, as GB18030; None if it is none."""
    try:
        return text.encode("utf-8", errors="surrogateescape").decode("gb18030")
    except UnicodeError:
        return None


def _read_by_line(lines: Iterator[Line], format: str) -> Iterator[Record]:
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
    lines = chain(head, lines)
    if head and ARRAY.match(head[-1][1]):
        return _read_json_array(path, "\n".join(text for _, text in lines))
    return _read_by_line(lines, "jsonl")


def _read_json_array(path: Path, text: str) -> Iterator[Record]:
    """The items of a JSON array, with the lines on which they begin.

    Raises:
        InputError: text that is not JSON, after which no item can be found.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}, line {line}: not a JSON array of objects ({error}). Correct it.") from error
    decoder, number, counted, end = json.JSONDecoder(), 1, 0, text.index("[") + 1
    while True:
        start = BETWEEN_ITEMS.match(text, end).end()  # type: ignore[union-attr]  # nothing is a match, too
        if text[start] == "]":
            return
        number, counted = number + text.count("\n", counted, start), start
        value, end = decoder.raw_decode(text, start)
        yield number, text[start:end], _json_object(value, text[start:end])


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
    if SURROGATE.search(text) and undecoded(as_text(value)):
        return RowError("UTF-8", "half of a character, as \\ud83d is of an emoji")
    return value


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
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problem = RowError("comma-separated values, with quotes doubled inside quotes", str(error))
        else:
            if not _joins_rows(consumed, len(fields)):
                yield start, "\n".join(consumed), fields
                continue
            got = f"a quote that closes {len(consumed) - 1} lines further on, across lines that look like rows"
            problem = RowError("a quote closed where its sentence ends", got)
        yield from ((number, line, problem) for number, line in enumerate(consumed, start))


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
        raise InputError(f"{path} is not a Parquet file ({error}). Rename or copy it again.") from error


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Record]:
    with open_parquet(path) as file:
        batches = file.iter_batches(batch_size=PARQUET_ROWS, columns=columns)
        for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
            yield number, as_text(row), row


def import_openpyxl(path: str | Path):
    """The library for xlsx.

    Raises:
        InputError: it is not installed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise InputError(
            f"{path}: xlsx needs openpyxl. Run pip install 'cosent[xlsx]', or save the sheet as CSV (UTF-8)."
        ) from error
    return openpyxl


def _read_xlsx(path: Path, title: str | None) -> Iterator[Record]:
    """The rows of a sheet, as wide as its first one. Empty rows at the end do not count."""
    width, blank = 0, []
    for number, row in enumerate(_sheet_rows(path, title), start=1):
        cells = list(row)
        while cells and cells[-1] is None:
            cells.pop()
        if not cells:
            blank.append(number)
            continue
        yield from ((earlier, "", []) for earlier in blank)
        blank = []
        width = width or len(cells)
        cells += [None] * (width - len(cells))
        fields = cells if len(cells) == width else RowError(f"{width} cells, as in the first row", f"{len(cells)}")
        yield number, as_text(cells), fields


def _sheet_rows(path: Path, title: str | None) -> Iterator[tuple]:
    """The rows of a workbook's sheet, or of its only one with content."""
    openpyxl = import_openpyxl(path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (openpyxl.utils.exceptions.InvalidFileException, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise InputError(f"{path} is not an xlsx workbook ({error}). Save it again, or as CSV (UTF-8).") from error
    titles = [sheet.title for sheet in book.worksheets]
    if title is None:
        titles = [sheet.title for sheet in book.worksheets if any(map(any, sheet.iter_rows(values_only=True)))]
        if len(titles) > 1:
            raise InputError(
                f"{path} has several sheets ({', '.join(titles)}). Name one with --sheet (prepare, similarity, "
                "evaluate), or save it as a file of its own."
            )
    elif title not in titles:
        raise InputError(f"--sheet {title}: {path} has the sheets {', '.join(titles)}. Name one of them.")
    name = title or next(iter(titles), None)
    return iter(()) if name is None else book[name].iter_rows(values_only=True)


def label_values(words: Sequence[str] | None) -> dict[str, str] | None:
    """The values of `--label_values 否=0 是=1` by their labels.

    Raises:
        InputError: a word without `=`.
    """
    if words is None:
        return None
    parts = [word.rpartition("=") for word in words]
    if not all(label.strip() and value for label, _, value in parts):
        raise InputError(f"--label_values takes LABEL=VALUE, as in 否=0 是=1, got {' '.join(words)}.")
    return {as_written(label): value.strip() for label, _, value in parts}


def as_written(label: object) -> str:
    """A label as text: without spaces around it, in small letters, and 1.0 as 1."""
    return f"{label:g}" if isinstance(label, float) else str(label).strip().lower()


def value_of(label: object, values: Mapping[str, str] | None) -> object:
    """What a label stands for: a word of `LABEL_WORDS` its number, anything else itself.

    Args:
        values: in place of `LABEL_WORDS`, all labels that there are; another one stands for None.
    """
    return LABEL_WORDS.get(as_written(label), label) if values is None else values.get(as_written(label))


def is_label(text: object) -> bool:
    """Whether a field is a finite number, or a word of `LABEL_WORDS`."""
    try:
        return math.isfinite(float(value_of(text, None)))  # type: ignore[arg-type]  # what it does not take is caught
    except (TypeError, ValueError):
        return False


class LabelColumn:
    """A column of labels, read as numbers; the first word that stands for one is logged."""

    def __init__(self, path: Path, name: str, values: Mapping[str, str] | None = None):
        self.path, self.name, self.values, self.logged = path, name, values, False

    def read(self, row: dict, number: int) -> float:
        """The label of row `number`, from 1.

        Raises:
            InputError: it is not a number.
        """
        label = row.get(self.name)
        value = value_of(label, self.values)
        if not is_label(value):
            of_values = f" or one of {', '.join(self.values)} (--label_values)" if self.values else ""
            raise InputError(
                f"{self.path}, pair {number}: expected a number{of_values} in {self.name}, got {label!r}. Correct it, "
                "name another --label_column, or say what it stands for: --label_values 否=0 是=1."
            )
        if value is not label and not self.logged:
            self.logged = True
            meaning = ", ".join(f"{word} as {number}" for word, number in (self.values or LABEL_WORDS).items())
            logger.info("%s: labels in %s are read by their words: %s.", self.path, self.name, meaning)
        return float(value)  # type: ignore[arg-type]  # it is a label


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
        header, empty = self.header, True
        for number, _, fields in read_records(self.path, self.format, columns, self.options):
            if header and fields:
                header = False
                continue
            try:
                row = self._row(fields, keep_empty)
                for name in (*self.sentences, *(columns or ())):
                    if name not in row:
                        raise RowError(f"the column {name}", f"a row with {', '.join(row) or 'no columns'}")
            except RowError as error:
                where = place(self.path, self.format, number)
                raise InputError(f"{where}: {error}. Correct or remove it.") from error
            empty = False
            yield row if columns is None else {name: row[name] for name in columns}
        if empty:
            raise InputError(f"{self.path} is empty: it has no rows. Name a file with sentences.")

    def texts(self, keep_empty: bool = False) -> Iterator[str]:
        """Streams the sentences of the only column of sentences."""
        (name,) = self.sentences
        return (row[name] for row in self.rows(self.sentences, keep_empty))

    def _row(self, fields: list | dict | RowError, keep_empty: bool) -> dict:
        """The fields of a row by column, with sentences that are text."""
        if isinstance(fields, RowError):
            raise fields
        if isinstance(fields, dict):
            row = fields
        elif not fields and keep_empty:
            row = dict.fromkeys(self.names) | dict.fromkeys(self.sentences, "")
        elif not fields:
            raise RowError("a sentence", "an empty line")
        elif len(fields) != len(self.names):
            raise RowError(f"{len(self.names)} columns ({', '.join(self.names)})", f"{len(fields)}")
        else:
            row = dict(zip(self.names, fields, strict=True))
        for name in self.sentences:
            value = row.get(name, "")
            if not isinstance(value, str):
                raise RowError(f"text in {name}", f"{value!r}" if value is not None else "nothing")
            if name in row and not keep_empty and not value.strip():
                raise RowError(f"a sentence in {name}", "an empty one")
        return row


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
        raise InputError(f"{what}: there is no file {path}.")
    if wanted is not None and len(wanted) != len(known):
        raise InputError(f"{flag} takes {len(known)} column names, got {len(wanted)}: {' '.join(wanted)}.")
    if format == "txt" and len(known) > 1:
        format = "tsv"
    if format == "txt":
        if wanted is not None:
            raise InputError(f"{path} has a sentence per line and no columns. Leave {flag} out.")
        return Table(path, format, ("text",), ("text",), False, options)
    first = first_fields(path, format, options)
    names = tuple(str(field).strip() for field in first)
    positions = None if format in KEYED else _positions(path, format, first, wanted, known, flag)
    if positions is not None:
        if max(positions) >= len(first) or len(set(positions)) < len(positions):
            raise InputError(
                f"{path}, line 1: expected {len(positions)} columns of sentences at {positions} (counted from 0), got "
                f"{len(first)} columns. Correct {flag} or the ending of the file.{separator_hint(first)}"
            )
        named = dict(zip(positions, (some[0] for some in known), strict=True))
        if positions == [0, 1] and len(first) == 3:
            named[2] = "label"
        names = tuple(named.get(position, f"column{position + 1}") for position in range(len(first)))
        return Table(path, format, names, tuple(named[position] for position in positions), False, options)
    if len(set(names)) < len(names):
        raise InputError(f"{path}, line 1: expected different columns, got {names}. Rename one of two.")
    return Table(path, format, names, _columns(path, names, wanted, known, flag), format not in KEYED, options)


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


def _positions(
    path: Path, format: str, first: list, wanted: Sequence[str] | None, known: Sequence[Sequence[str]], flag: str
) -> list[int] | None:
    """Positions of the sentences in a file without a header; None if line 1 is one."""
    names = {str(field).strip() for field in first}
    if wanted is not None:
        by_position = all(name.isdecimal() for name in wanted) and not set(wanted) <= names
        return [int(name) for name in wanted] if by_position else None
    if all(set(some) & names for some in known):
        return None
    if format == "xlsx" and all(isinstance(field, str) and field.strip() for field in first):
        return None
    with_label = len(known) == 2 and [is_label(field) for field in first] == [False, False, True]
    if len(first) > len(known) and not with_label:
        raise _unclear(path, first, known, flag)
    reason = "the first two columns are the sentences" if with_label else "line 1 names no known column"
    logger.info("%s: no header, %s; %s says otherwise.", path, reason, flag)
    return list(range(len(known)))


def _columns(
    path: Path, names: tuple[str, ...], wanted: Sequence[str] | None, known: Sequence[Sequence[str]], flag: str
) -> tuple[str, ...]:
    """The columns of sentences among `names`."""
    if wanted is None:
        if len(known) == len(names) == 1:
            return names
        if not all(set(some) & set(names) for some in known):
            raise _unclear(path, names, known, flag)
        return tuple(next(name for name in some if name in names) for some in known)
    if not set(wanted) <= set(names) or len(set(wanted)) < len(wanted):
        raise InputError(
            f"{path}: {flag} {' '.join(wanted)}: expected different ones of its columns, {', '.join(names)}. Correct "
            f"the name.{separator_hint(names)}"
        )
    return tuple(wanted)


def _unclear(path: Path, names: Sequence[object], known: Sequence[Sequence[str]], flag: str) -> InputError:
    usual = " and ".join(" or ".join(some[:2]) for some in known)
    return InputError(
        f"{path}: expected a column named {usual}, got {', '.join(map(str, names))}. Name it with {flag}: a name of "
        "the first line, or a position from 0 in a file without one."
    )


def check_output(path: str | Path, input_path: str | Path, overwrite: bool) -> None:
    """Refuses an output file that could not be written, or would replace what is there.

    Raises:
        InputError: no such folder, an ending that no table is written by, or an existing file without `overwrite`.
    """
    path, format = Path(path), known_format(path, "--output")
    if format not in WRITERS:
        endings = ", ".join(ending for ending, format in FORMATS.items() if format in WRITERS)
        raise InputError(f"--output {path}: text lines have no columns. Name a file that ends in {endings}.")
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: the folder {path.parent} does not exist. Create it first.")
    if path.resolve() == Path(input_path).resolve():
        raise InputError(f"--output {path} is the input. Name another output.")
    if path.exists() and (path.is_dir() or not overwrite):
        raise InputError(f"--output {path} exists. Name another, or pass --overwrite.")
    if format == "xlsx":
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
    format = known_format(path, "--output")
    with writing(path), partial_file(path) as partial, WRITERS[format](partial, names, str(path)) as write:

        def write_checked(rows: list[dict]) -> None:
            others = set().union(*rows).difference(names)
            if others and format != "jsonl":
                raise InputError(
                    f"{path}: expected rows with the columns {', '.join(names)}, as the first one, got one with "
                    f"{', '.join(sorted(others))} too. Write .jsonl, or give all rows the same keys."
                )
            write(rows)

        yield write_checked


@contextmanager
def _text_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    def tsv_line(row: dict) -> str:
        values = ("" if row.get(name) is None else str(row[name]) for name in names)
        return "\t".join(re.sub(r"[\t\r\n]+", " ", value) for value in values)

    opened = gzip.open if path.lower().endswith(".gz") else open
    with opened(partial, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if format_of(path) == "csv":
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            yield writer.writerows
            return
        line = as_text if format_of(path) == "jsonl" else tsv_line
        if line is tsv_line:
            file.write("\t".join(names) + "\n")
        yield lambda rows: file.writelines(line(row) + "\n" for row in rows)


@contextmanager
def _parquet_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    writer = None

    def write(rows: list[dict]) -> None:
        nonlocal writer
        columns = {name: [row.get(name) for row in rows] for name in names}
        try:
            table = pyarrow.table(columns, schema=writer and writer.schema)
            if writer is None:  # a column without a value yet is one of text
                types = [pyarrow.string() if type == pyarrow.null() else type for type in table.schema.types]
                table = table.cast(pyarrow.schema(list(zip(names, types, strict=True))))
                writer = pyarrow.parquet.ParquetWriter(partial, table.schema)
            writer.write_table(table)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
            raise InputError(
                f"{path}: a column of Parquet has one type, and later rows have another ({error}). Correct them, or "
                "write .jsonl."
            ) from error

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        raise InputError(f"{path}: there are no rows to write.")


@contextmanager
def _xlsx_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    openpyxl = import_openpyxl(path)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    count = 1

    def cell(value: object) -> object:
        """A value as a cell: lists become JSON, and text stays text, also where it begins with `=`."""
        if isinstance(value, list | dict):
            value = as_text(value)
        if not isinstance(value, str):
            return value
        text = openpyxl.cell.WriteOnlyCell(sheet, value)
        text.data_type = "s"
        return text

    def write(rows: list[dict]) -> None:
        nonlocal count
        count += len(rows)
        if count > XLSX_ROWS:
            raise InputError(f"{path}: a sheet of xlsx holds {XLSX_ROWS:,} rows, and there are more. Write .parquet.")
        try:
            for row in rows:
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


WRITERS = {
    **dict.fromkeys(("tsv", "csv", "jsonl"), _text_writer),
    "parquet": _parquet_writer,
    "xlsx": _xlsx_writer,
}
