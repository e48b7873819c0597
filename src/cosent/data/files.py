"""Tables of sentences, read as a stream by column names; no row is skipped silently."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosent.data.formats import (
    AS_USUAL,
    ENCODINGS,
    KEYED,
    ErrorCell,
    FileOptions,
    RowError,
    is_blank,
    known_format,
    open_parquet,
    place,
    read_records,
)
from cosent.data.labels import number_of
from cosent.errors import InputError
from cosent.flags import option

logger = logging.getLogger(__name__)

_NOUNS = ("句子", "文本", "问题")
TEXT_NAMES = ("text", "sentence", "文本", "句子", "问题", "问句", "question", "query")  # the usual names of columns
SENTENCE1_NAMES = (
    *("sentence1", "text1", "s1", "premise", "query1", "question1", "query", "anchor", "sentence_A"),
    *(noun + number for noun in _NOUNS for number in "1一"),
)
SENTENCE2_NAMES = (
    *("sentence2", "text2", "s2", "hypothesis", "query2", "question2", "passage", "document"),
    *("response", "sentence_B", "positive"),
    *(noun + number for noun in _NOUNS for number in "2二"),
)
LABEL_NAMES = ("gold_label", "label", "score", "similarity", "gold", "标签", "相似", "是否相似", "分数")
SENTENCE, PAIR = (TEXT_NAMES,), (SENTENCE1_NAMES, SENTENCE2_NAMES)  # usual names of the sentence columns

TableRecord = tuple[int, str, dict | RowError | None]  # line number, text, row (None: blank) or its fault


@dataclass(kw_only=True)
class FileArguments:
    """Reading of files."""

    sheet: str | None = option(None, "Sheet to read, of a workbook with several.")
    encoding: str = option("utf-8", "Encoding of text without a byte order mark.", (*ENCODINGS, "gbk"))
    header: bool | None = option(
        None, "Whether line 1 of a table holds column names (--no_header: a row); default: detected."
    )

    @property
    def options(self) -> FileOptions:
        return FileOptions(self.sheet, "gb18030" if self.encoding == "gbk" else self.encoding, self.header)


@dataclass(kw_only=True)
class TableArguments(FileArguments):
    """Columns of pairs."""

    text_columns: list[str] | None = option(
        None,
        "Names of the two columns of sentences, or their positions from 0; default: sentence1 and sentence2 and their "
        "like, or the only two, with labels the first two of three.",
    )


@dataclass(kw_only=True)
class LabelArguments:
    """Meaning of labels."""

    label_values: list[str] | None = option(
        None,
        "Values of labels, e.g. 否=0 是=1; known are numbers, 是, 相似, 相同, true, yes as 1 and 否, 不相似, 不同, "
        "false, no as 0.",
    )


OF_FILES = ("sheet", "encoding", "header")
OF_TABLES = (*OF_FILES, "text_columns")


def check_text(value: object, name: str) -> str:
    """A sentence as it stands in column `name`."""
    if isinstance(value, dict | list):
        raise RowError(f"text in {name}", repr(value), "Write one text there, not a list or an object.")
    if value is None:
        raise RowError(f"text in {name}", value, "Fill it in: of merged cells, only the first has the value.")
    if not isinstance(value, str) or isinstance(value, ErrorCell):
        raise RowError(f"text in {name}", repr(value))
    if "\0" in value:
        raise RowError(f"text in {name}", f"a NUL character in {value!r}")
    if is_blank(value):
        raise RowError(f"a sentence in {name}", "an empty one")
    return value


@dataclass(frozen=True)
class Table:
    """A file of rows, and the columns of its sentences.

    Args:
        names: all columns; made up for a file without a header.
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
        header = self.header
        for number, text, fields in read_records(self.path, self.format, columns, self.options):
            if header and fields:
                header = False
                continue
            yield number, text, self.by_column(text, fields) if isinstance(fields, list) else fields

    def by_column(self, text: str, fields: list) -> dict | RowError:
        """The fields by the names of their columns."""
        if len(fields) == len(self.names):
            return dict(zip(self.names, fields, strict=True))
        remedy = "Correct or remove it."
        if self.format == "csv":
            remedy = "Put a text with the separator in it into quotes, or correct the line."
        elif '"' in text:
            remedy = "If a spreadsheet wrote its quotes, around tabs or line breaks, save the file as .csv."
        return RowError(f"{len(self.names)} columns", len(fields), remedy)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict]:
        """Streams the rows as `{column: value}`; see `placed`."""
        return (row for _, row in self.placed(columns))

    def placed(self, columns: Sequence[str] | None = None, skip_blank: bool = False) -> Iterator[tuple[str, dict]]:
        """Streams the rows as `{column: value}`, each with its file and line; values of txt, tsv and csv are text.

        Args:
            columns: columns to read, among them `sentences`; default: all, also those of JSON lines that the first one
                does not have.
            skip_blank: skip rows with an empty first sentence; otherwise one is an error.
        """
        number = 0
        for number, _, row in self.records(columns):
            if skip_blank and (
                row is None or (isinstance(row, dict) and is_blank(str(row.get(self.sentences[0], "x"))))
            ):
                continue
            where = place(self.path, self.format, number)
            try:
                row = self.checked(row, columns or ())
            except RowError as error:
                raise InputError(f"{where}: {error}. {error.remedy}") from error
            yield where, row if columns is None else {name: row[name] for name in columns}
        if not number:
            raise InputError(f"{self.path} is empty: it has no rows. Name a file with sentences.")

    def texts(self, skip_blank: bool = False) -> Iterator[str]:
        """Streams the sentences of the only column of sentences."""
        (name,) = self.sentences
        return (row[name] for _, row in self.placed(self.sentences, skip_blank))

    def checked(self, row: dict | RowError | None, columns: Sequence[str]) -> dict:
        """A row that has `columns`, and text as its sentences."""
        if isinstance(row, RowError):
            raise row
        if row is None:
            raise RowError("a sentence", "an empty line")
        for name in (*self.sentences, *columns):
            if name not in row:
                raise RowError(f"the column {name}", f"a row with {', '.join(row) or 'no columns'}")
        for name in self.sentences:
            check_text(row[name], name)
        return row


def open_table(
    path: str | Path,
    columns: Sequence[str | None] | None,
    usual_names: Sequence[Sequence[str]],
    flag: str,
    what: str = "--input",
    options: FileOptions = AS_USUAL,
) -> Table:
    """A file with the columns of its sentences, see `find_columns`; `what` is the flag of `path`, for messages."""
    path, format = Path(path), known_format(path, what)
    if not path.is_file():
        raise InputError(f"{what}: there is no file {path}. Check the path.")
    if format == "txt" and len(usual_names) == 1:
        if columns is not None or options.header is not None:
            raise InputError(f"{path} has a sentence per line and no columns. Leave {flag} and --header out.")
        return Table(path, format, ("text",), ("text",), options=options)
    return find_columns(first_row(path, format, options), columns, usual_names, flag)


def first_row(path: Path, format: str, options: FileOptions) -> Table:
    """A table whose names are the columns of Parquet, the keys of the first readable JSON line, or line 1."""
    format = format.replace("txt", "tsv")
    if format == "parquet":
        with open_parquet(path) as file:
            return Table(path, format, tuple(map(str.strip, file.schema_arrow.names)), options=options)
    problem = None
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError):
            problem = problem or InputError(f"{place(path, format, number)}: {fields}. {fields.remedy}")
            if format not in KEYED:
                break
        elif fields:
            return Table(path, format, tuple(str(field).strip() for field in fields), options=options)
    raise problem or InputError(f"{path} is empty: it has no rows. Name another file.")


def find_columns(
    first: Table, columns: Sequence[str | None] | None, usual_names: Sequence[Sequence[str]], flag: str
) -> Table:
    """Finds the sentence columns: those named by flags, else common names, else the first ones.

    Args:
        first: a table by its `first_row`.
        columns: for each column its name, its position from 0, or None to find it; None to find all.
        usual_names: the usual names of each: `SENTENCE`, `PAIR`, or also names of a label.
        flag: the flag of `columns`, for messages; empty if there is none.
    """
    path, names, keyed = first.path, first.names, first.format in KEYED
    if columns is not None and len(columns) != len(usual_names):
        named = [name for name in columns if name]
        raise InputError(f"{flag} must name {len(usual_names)} columns in all, got {len(named)}: {' '.join(named)}.")
    roles = list(zip(columns or [None] * len(usual_names), usual_names, strict=True))
    header = first.options.header
    if keyed or header is None:
        header = keyed or has_header(names, roles)
    in_order = has_order(names, len(usual_names), keyed)
    positions = [
        column_of(*role, names if header else (), i if in_order else None, numbered=not keyed)
        for i, role in enumerate(roles)
    ]
    if len({position for position in positions if position is not None and position < len(names)}) < len(usual_names):
        expected = ", ".join(name or " or ".join(usual[:2]) for name, usual in roles)
        at_line_1 = "names of line 1, or positions from 0 (with --header or --no_header if line 1 is misread)"
        advice = f"Name them with {flag}: {at_line_1}." if flag else "Rename it."
        if len(names) == 1 and not keyed:
            advice = {
                "xlsx": "If it is a title, delete its row.",
                "csv": "Columns are separated by commas, semicolons or tabs. Delete a title above them.",
            }.get(first.format, "Columns are separated by tabs. Delete a title above them.")
        raise InputError(
            f"{path}, line 1: expected, each once, the columns {expected}, got {', '.join(names)}. {advice}"
        )
    if not header:
        made_up = {position: usual[0] for position, usual in zip(positions, usual_names, strict=True)}
        if len(names) == 3 and set(made_up) == {0, 1}:
            made_up[2] = "label"
        names = tuple(made_up.get(i, f"column{i + 1}") for i in range(len(names)))
        if columns is None or None in columns:
            logger.info("%s: no header, the first columns are read. Otherwise name them with %s.", path, flag or "one")
    elif len(set(names)) < len(names):  # positions tell repeated names apart
        names = tuple(name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names))
    return replace(
        first, names=names, sentences=tuple(names[i] for i in positions if i is not None), header=header and not keyed
    )


def has_header(names: Sequence[str], roles: Sequence[tuple[str | None, Sequence[str]]]) -> bool:
    """Whether line 1 is a header: a column is asked for by name, or the (first two) columns have usual names."""
    by_name = any(name and not name.isdecimal() for name, _ in roles)
    return by_name or all(set(usual) & set(names) for _, usual in roles[:2])


def has_order(fields: Sequence[str], count: int, keyed: bool) -> bool:
    """Whether the first `count` columns hold the sentences: there are no others, or a pair is followed by a label."""
    if keyed:
        return len(fields) == count == 1
    labels = [number_of(field) is not None for field in fields]
    return len(fields) <= count or (count == 2 and labels == [False, False, True])


def column_of(
    name: str | None, usual: Sequence[str], names: Sequence[str], by_place: int | None, numbered: bool
) -> int | None:
    """The position of a column by its number or name, else of the first usual name, else `by_place`.

    None for a column that is missing, or whose name is repeated.
    """
    if name and name.isdecimal() and numbered:
        return int(name)
    if name is None:
        name = next((candidate for candidate in usual if candidate in names), None)
        if name is None:
            return by_place
    return names.index(name) if names.count(name) == 1 else None


def read_texts(paths: Iterable[str | Path], options: FileOptions = AS_USUAL) -> Iterator[str]:
    """Streams the texts of files, stripped, in their order; blank ones are left out.

    Args:
        paths: `.txt` with a text per line, or tables with a column `text` or `sentence`, or a single one.
    """
    for path in paths:
        table = open_table(path, None, SENTENCE, "", "--text", options)
        yield from map(str.strip, table.texts(skip_blank=True))


def read_rows(
    paths: Iterable[str | Path], column: str | None = None, options: FileOptions = AS_USUAL
) -> Iterator[tuple[str, dict]]:
    """Streams the texts of files, each with all columns of its row, or none of lines of text.

    An empty text is an error, so that the number of a row is its place in the file.

    Args:
        column: the column of texts; default: `text` or `sentence`, or a single one.
    """
    for path in paths:
        table = open_table(path, None if column is None else [column], SENTENCE, "--text_column", "--text", options)
        (name,) = table.sentences
        for row in table.rows():
            yield row[name].strip(), {} if table.format == "txt" else finite(row)


def finite(value: Any) -> Any:
    """A value of a row, with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def normalized_text(text: str) -> str:
    """Normalises a sentence for comparison: no punctuation, spaces or case."""
    return re.sub(r"\W+", "", text).lower()
