"""Tables of sentences, read as a stream by column names, and written; no row is skipped silently."""

from __future__ import annotations

import csv
import gzip
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import filterfalse
from pathlib import Path

from cosent.atomic import partial_file
from cosent.cli import option
from cosent.data.formats import (
    AS_USUAL,
    ENCODINGS,
    FORMATS,
    KEYED,
    ErrorCell,
    FileOptions,
    RowError,
    as_text,
    ending_of,
    format_of,
    import_openpyxl,
    is_blank,
    open_parquet,
    place,
    read_records,
    with_quoting,
)
from cosent.errors import InputError

logger = logging.getLogger(__name__)

_NOUNS = ("句子", "文本", "问题")
TEXT_NAMES = ("text", "sentence", "文本", "句子")  # of columns that are found without being asked for
SENTENCE1_NAMES = (
    *("sentence1", "text1", "s1", "premise", "query1", "question1", "query", "anchor", "sentence_A", "messages"),
    *(noun + number for noun in _NOUNS for number in "1一"),
)
SENTENCE2_NAMES = (
    *("sentence2", "text2", "s2", "hypothesis", "query2", "question2", "passage", "document"),
    *("response", "sentence_B", "positive_messages", "positive"),
    *(noun + number for noun in _NOUNS for number in "2二"),
)
LABEL_NAMES = ("gold_label", "label", "score", "similarity", "gold", "标签", "相似", "是否相似", "分数")
SCORE_NAMES = ("score", "reranker_score", "similarity", "分数")  # of a model, never the label next to them
CHATS = ("messages", "positive_messages", "negative_messages")  # keys of ms-swift
MEDIA = ("images", "videos", "audios")
SENTENCE, PAIR = (TEXT_NAMES,), (SENTENCE1_NAMES, SENTENCE2_NAMES)  # what is looked for in a table
LABEL_WORDS = {"是": "1", "否": "0", "相似": "1", "不相似": "0", "true": "1", "false": "0", "yes": "1", "no": "0"}

XLSX_ROWS = 1_048_576  # with the names

Write = Callable[[list[dict]], None]
TableRecord = tuple[int, str, dict | RowError | None]  # line number, text, row (None: blank) or what is wrong with it


@dataclass
class FileArguments:
    """File of pairs."""

    sheet: str | None = option(None, "Sheet to read, of a workbook with several.")
    encoding: str = option("utf-8", "Encoding of text.", (*ENCODINGS, "gbk"))
    text_columns: list[str] | None = option(
        None,
        "Names of the two columns of sentences, or their positions from 0 without a header; default: sentence1 and "
        "sentence2 and their like, or the only two, with labels the first two of three.",
        commas=True,
    )

    @property
    def options(self) -> FileOptions:
        return FileOptions(self.sheet, "gb18030" if self.encoding == "gbk" else self.encoding)


@dataclass
class TableArguments(FileArguments):
    """Meaning of labels."""

    label_values: list[str] | None = option(
        None,
        "All labels and their values, e.g. 否=0 是=1; default: numbers, and 是, 相似, true, yes as 1, "
        "否, 不相似, false, no as 0.",
        commas=True,
    )


OF_FILES = ("sheet", "encoding", "text_columns")
OF_TABLES = (*OF_FILES, "label_values")


def stem_of(path: str | Path) -> str:
    """The name of a file without its ending: `part-1` of `a/part-1.csv.gz`."""
    return Path(path).name[: -len(ending_of(path)) or None]


def known_format(path: str | Path, flag: str) -> str:
    """As `format_of`, for the file of a flag."""
    format = format_of(path)
    if format is None:
        raise InputError(
            f"{flag} {path}: expected a file that ends in {', '.join(FORMATS)}, text also in .gz. Rename or convert it."
        )
    return format


def label_values(words: Sequence[str] | None) -> dict[str, str] | None:
    """The values of `--label_values 否=0 是=1` by their labels."""
    if words is None:
        return None
    parts = [word.rpartition("=") for word in words]
    if not all(label.strip() and value for label, _, value in parts):
        raise InputError(f"--label_values takes LABEL=VALUE, as in 否=0 是=1, got {' '.join(words)}.")
    return {as_written(label): value.strip() for label, _, value in parts}


def as_written(label: object) -> str:
    """A label as text: without spaces around it, in small letters, and 1.0 as 1."""
    text = str(label).strip().lower()
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def value_of(label: object, values: Mapping[str, str] | None) -> object:
    """Value of a label: the number of a word in `LABEL_WORDS`, else the label itself.

    Args:
        values: in place of `LABEL_WORDS`, all labels that there are; another one stands for None.
    """
    return LABEL_WORDS.get(as_written(label), label) if values is None else values.get(as_written(label))


def number_of(label: object, values: Mapping[str, str] | None = None) -> float | None:
    """A label as a finite number, see `value_of`; None if it is none."""
    try:
        number = float(value_of(label, values))  # type: ignore[arg-type]  # what it does not take is caught
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def read_label(label: object, where: str, values: Mapping[str, str] | None = None) -> float:
    """A label as a number, see `number_of`; `where` names its file and row in an error."""
    number = number_of(label, values)
    if number is None:
        of_values = f" or one of {', '.join(values)} (--label_values)" if values else ""
        raise InputError(
            f"{where}: expected a number{of_values} as the label, got {label!r}. Correct it, say what it stands for "
            "(--label_values 否=0 是=1), or for a header name its columns: --text_columns A B --label_column C."
        )
    return number


def check_text(value: object, name: str, keep_empty: bool = False) -> str:
    """A sentence as it stands in column `name`."""
    if not isinstance(value, str) or isinstance(value, ErrorCell):
        raise RowError(f"text in {name}", repr(value))
    if "\0" in value:
        raise RowError(f"text in {name}", f"a NUL character in {value!r}")
    if not keep_empty and is_blank(value):
        raise RowError(f"a sentence in {name}", "an empty one")
    return value


def without_chats(row: dict) -> dict | RowError:
    """A row with chats replaced by their texts, or the fault of a chat with more than one text."""
    try:
        if (chats := [name for name in CHATS if row.get(name) is not None]) and any(row.get(name) for name in MEDIA):
            raise RowError("text alone", f"a row with {', '.join(name for name in MEDIA if row.get(name))}")
        return row | {name: text_of_chat(row[name], name) for name in chats} if chats else row
    except RowError as error:
        return error


def text_of_chat(chat: object, name: str) -> str | list:
    """The text of a chat of one message, behind that of a system as ms-swift puts it, or of a list of chats."""
    if isinstance(chat, list) and all(isinstance(one, list) for one in chat):
        texts = [text_of_chat(one, name) for one in chat]
        return texts[0] if len(texts) == 1 else texts
    said = [one if isinstance(one, dict) else {} for one in chat] if isinstance(chat, list) else []
    contents = [one["content"] for one in said if isinstance(one.get("content"), str)]
    roles = [one.get("role") == "system" for one in said]
    if roles not in ([False], [True, False]) or len(contents) < len(said):
        raise RowError(f"one message in {name}, with a system's in front at most", as_text(chat))
    return " ".join(contents)


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
    sentences: tuple[str, ...] = ()
    header: bool = False
    options: FileOptions = AS_USUAL

    def records(self, columns: Sequence[str] | None = None) -> Iterator[TableRecord]:
        """Streams line number, text and `{column: value}` of all rows; see `rows`."""
        header, width = self.header, len(self.names)
        for number, text, fields in read_records(self.path, self.format, columns, self.options):
            if header and fields:
                header = False
            elif isinstance(fields, dict):
                yield number, text, without_chats(fields)
            elif isinstance(fields, list):
                wrong = None if len(fields) == width else RowError(f"{width} columns", len(fields))
                yield number, text, wrong or dict(zip(self.names, fields, strict=True))
            else:
                yield number, text, fields

    def rows(self, columns: Sequence[str] | None = None, keep_empty: bool = False) -> Iterator[dict]:
        """Streams the rows as `{column: value}`; values of txt, tsv and csv are text.

        Args:
            columns: those that are wanted, among them `sentences`; default: all, also those of JSON lines that the
                first one does not have.
            keep_empty: accept empty sentences and lines; default: stop at the first.
        """
        return (row for _, row in self.placed(columns, keep_empty))

    def placed(self, columns: Sequence[str] | None = None, keep_empty: bool = False) -> Iterator[tuple[str, dict]]:
        """The `rows`, each with its file and line for errors."""
        number = 0
        for number, _, row in self.records(columns):
            if row is None and keep_empty:
                row = dict.fromkeys(self.names) | dict.fromkeys(self.sentences, "")
            where = place(self.path, self.format, number)
            try:
                row = self.checked(row, columns or (), keep_empty)
            except RowError as error:
                raise InputError(f"{where}: {error}. Correct or remove it.") from error
            yield where, row if columns is None else {name: row[name] for name in columns}
        if not number:
            raise InputError(f"{self.path} is empty: it has no rows. Name a file with sentences.")

    def texts(self, keep_empty: bool = False) -> Iterator[str]:
        """Streams the sentences of the only column of sentences."""
        (name,) = self.sentences
        return (row[name] for row in self.rows(self.sentences, keep_empty))

    def checked(self, row: dict | RowError | None, columns: Sequence[str], keep_empty: bool) -> dict:
        """A row that has `columns`, and text as its sentences."""
        if isinstance(row, RowError):
            raise row
        if row is None:
            raise RowError("a sentence", "an empty line")
        for name in (*self.sentences, *columns):
            if name not in row:
                raise RowError(f"the column {name}", f"a row with {', '.join(row) or 'no columns'}")
        for name in self.sentences:
            check_text(row[name], name, keep_empty)
        return row


def open_table(
    path: str | Path,
    wanted: Sequence[str | None] | None,
    known: Sequence[Sequence[str]],
    flag: str,
    what: str = "--input",
    options: FileOptions = AS_USUAL,
) -> Table:
    """A file with the columns of its sentences, see `find_columns`; `what` is the flag of `path`, for messages."""
    path, format = Path(path), known_format(path, what)
    if not path.is_file():
        raise InputError(f"{what}: there is no file {path}. Check the path.")
    if format == "txt" and len(known) == 1:
        if wanted is not None:
            raise InputError(f"{path} has a sentence per line and no columns. Leave {flag} out.")
        return Table(path, format, ("text",), ("text",), options=options)
    return find_columns(first_row(path, format, options), wanted, known, flag)


def first_row(path: Path, format: str, options: FileOptions) -> Table:
    """A table whose names are the columns of Parquet, the keys of the first readable JSON line, or line 1."""
    format = format.replace("txt", "tsv")
    options = with_quoting(path, format, options)
    if format == "parquet":
        with open_parquet(path) as file:
            return Table(path, format, tuple(map(str.strip, file.schema_arrow.names)), options=options)
    problem = InputError(f"{path} is empty: it has no rows. Name another file.")
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError):
            problem = InputError(f"{place(path, format, number)}: {fields}. Correct it: it names the columns.")
            if format not in KEYED:
                break
        elif fields:
            return Table(path, format, tuple(str(field).strip() for field in fields), options=options)
    raise problem


def find_columns(
    first: Table,
    wanted: Sequence[str | None] | None,
    known: Sequence[Sequence[str]],
    flag: str,
    header: bool | None = None,
) -> Table:
    """Finds the columns of sentences: by name or position, as they are usually called, or by their place.

    Args:
        first: a table by its `first_row`.
        wanted: for each column its name, its position from 0, or None to find it; None to find all.
        known: the usual names of each: `SENTENCE`, `PAIR`, or also names of a label.
        flag: the flag of `wanted`, for messages; empty if there is none.
        header: whether line 1 holds names; default: found out.
    """
    path, names, keyed = first.path, first.names, first.format in KEYED
    if wanted is not None and len(wanted) != len(known):
        named = [name for name in wanted if name]
        raise InputError(f"{flag} must name {len(known)} columns in all, got {len(named)}: {' '.join(named)}.")
    roles = list(zip(wanted or [None] * len(known), known, strict=True))
    if keyed or header is None:
        header = keyed or has_header(names, roles)
    in_order = has_order(names, len(known), keyed)
    found = [
        column_of(*role, names if header else (), i if in_order else None, numbered=not keyed)
        for i, role in enumerate(roles)
    ]
    positions = [position for position in found if position is not None and position < len(names)]
    if len(set(positions)) < len(known) or (header and len(set(names)) < len(names)):
        expected = ", ".join(one or " or ".join(usual[:2]) for one, usual in roles)
        if len(names) == 1 and not keyed:
            raise InputError(
                f"{path}, line 1: one column, {names[0]!r}, where {len(known)} are needed, {expected}. Columns are "
                "separated by commas in .csv and by tabs in .tsv."
            )
        advice = (
            f"Name them with {flag}: names of line 1, or positions from 0 if it has none." if flag else "Rename it."
        )
        columns = f"the columns {expected}, got {', '.join(names)}"
        raise InputError(f"{path}, line 1: expected, each once, {columns}. {advice}")
    if not header:
        made_up = {position: usual[0] for position, usual in zip(positions, known, strict=True)}
        if len(names) == 3 and set(made_up) == {0, 1}:
            made_up[2] = "label"
        names = tuple(made_up.get(i, f"column{i + 1}") for i in range(len(names)))
        if wanted is None or None in wanted:
            logger.info("%s: no header, the first columns are read. Otherwise name them with %s.", path, flag or "one")
    return replace(first, names=names, sentences=tuple(names[i] for i in positions), header=header and not keyed)


def has_header(names: Sequence[str], roles: Sequence[tuple[str | None, Sequence[str]]]) -> bool:
    """Whether line 1 is a header: a column is asked for by name, or the (first two) columns have usual names."""
    by_name = any(one and not one.isdecimal() for one, _ in roles)
    return by_name or all(set(usual) & set(names) for _, usual in roles[:2])


def has_order(fields: Sequence[str], count: int, keyed: bool) -> bool:
    """Whether the first `count` columns are those of sentences: there are no others, but a label behind a pair."""
    if keyed:
        return len(fields) == count == 1
    labels = [number_of(field) is not None for field in fields]
    return len(fields) <= count or (count == 2 and labels == [False, False, True])


def column_of(
    asked: str | None, usual: Sequence[str], names: Sequence[str], by_place: int | None, numbered: bool
) -> int | None:
    """The position of the column asked for, by number or name, else of a usual name, else `by_place`; None: missing."""
    if asked and asked.isdecimal() and numbered:
        return int(asked)
    if asked:
        return names.index(asked) if asked in names else None
    return next((names.index(name) for name in usual if name in names), by_place)


def check_output(path: str | Path, input_path: str | Path, overwrite: bool) -> None:
    """Refuses an output file that could not be written, or would replace what is there."""
    path, format = Path(path), known_format(path, "--output")
    if format not in WRITERS:
        raise InputError(f"--output {path}: a .txt has no columns. Name a .tsv, .csv, .jsonl, .parquet or .xlsx.")
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
    """Yields a function that appends rows, `{column: value}`, to a new file; see `check_output`.

    In TSV, tabs and line breaks of a text become spaces, since nothing is quoted there. JSON lines have the keys of
    each row, the other formats the columns `names`.
    """
    format = known_format(path, "--output")
    with partial_file(path) as partial, WRITERS[format](partial, names, str(path)) as write:

        def write_checked(rows: list[dict]) -> None:
            others = set().union(*rows).difference(names)
            if others and format != "jsonl":
                raise InputError(
                    f"{path}: expected rows with the columns {', '.join(names)}, got one with "
                    f"{', '.join(sorted(others))} too. Write .jsonl, or give all rows the same keys."
                )
            write(rows)

        yield write_checked


@contextmanager
def _text_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    opened, format = gzip.open if path.lower().endswith(".gz") else open, format_of(path)
    with opened(partial, "wt", encoding="utf-8", newline="") as file:  # type: ignore[operator]
        if format == "jsonl":
            yield lambda rows: file.writelines(as_text(row) + "\n" for row in rows)
            return
        unquoted: dict = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
        writer = csv.DictWriter(file, names, lineterminator="\n", **unquoted if format == "tsv" else {})
        writer.writeheader()
        yield lambda rows: writer.writerows(map(one_line, rows) if format == "tsv" else rows)


def one_line(row: dict) -> dict:
    """A row without tabs and line breaks in its texts."""
    return {name: re.sub(r"[\t\r\n]+", " ", str(value)) for name, value in row.items() if value is not None}


@contextmanager
def _parquet_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    import pyarrow
    import pyarrow.parquet

    with ExitStack() as stack:
        writer = None

        def write(rows: list[dict]) -> None:
            nonlocal writer
            columns = {name: [row.get(name) for row in rows] for name in names}
            try:
                table = pyarrow.table(columns, schema=writer and writer.schema)
                if writer is None:  # a column without a value yet is one of text
                    types = [pyarrow.string() if type == pyarrow.null() else type for type in table.schema.types]
                    schema = pyarrow.schema(list(zip(names, types, strict=True)))
                    writer = stack.enter_context(pyarrow.parquet.ParquetWriter(partial, schema))
                writer.write_table(table.cast(writer.schema))
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError) as error:
                raise InputError(f"{path}: a column of Parquet has one type ({error}). Name a .jsonl.") from error

        yield write


@contextmanager
def _xlsx_writer(partial: Path, names: Sequence[str], path: str) -> Iterator[Write]:
    openpyxl = import_openpyxl(path)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(list(names))
    count = 1

    def cell(value: object) -> object:
        """A value as a cell: lists become JSON, and text stays text, also where it begins with `=`."""
        value = as_text(value) if isinstance(value, list | dict) else value
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
            raise InputError(f"{path}: xlsx has no control characters, got {str(error)!r}. Write .parquet.") from error

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


def read_texts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Streams the texts of files, stripped, in their order; empty ones are left out.

    Args:
        paths: `.txt` with a text per line, or tables with a column `text` or `sentence`, or a single one.
    """
    for path in paths:
        table = open_table(path, None, SENTENCE, "", "--text")
        yield from filterfalse(is_blank, map(str.strip, table.texts(keep_empty=True)))


def read_rows(paths: Iterable[str | Path], column: str | None = None) -> Iterator[tuple[str, dict]]:
    """Streams the texts of files as `read_texts` does, each with all columns of its row; none where there is only one.

    Args:
        column: the column of texts; default: `text` or `sentence`, or a single one.
    """
    for path in paths:
        table = open_table(path, None if column is None else [column], SENTENCE, "--text_column", "--text")
        (name,) = table.sentences
        for row in table.rows(keep_empty=True):
            if not is_blank(text := row[name]):
                yield text.strip(), row if len(row) > 1 else {}


def normalized_text(text: str) -> str:
    """Normalises a sentence for comparison: no punctuation, spaces or case."""
    return re.sub(r"\W+", "", text).lower()
