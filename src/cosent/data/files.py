"""Tables of sentences: read as a stream by column names, and written; no row is skipped in silence."""

import csv
import gzip
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cosent.cli import option
from cosent.data.records import (
    AS_USUAL,
    ENCODINGS,
    FORMATS,
    KEYED,
    FileOptions,
    RowError,
    as_text,
    ending_of,
    format_of,
    import_openpyxl,
    open_parquet,
    place,
    read_records,
)
from cosent.errors import InputError, partial_file, writing

logger = logging.getLogger(__name__)

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
ID_NAMES = ("_id", "id", "编号")  # of queries and documents
QUERY_ID_NAMES = ("query-id", "query_id", "qid", "query")  # of judgements; those of BEIR first
DOCUMENT_ID_NAMES = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "pid", "document")
SENTENCE, PAIR = (TEXT_NAMES,), (SENTENCE1_NAMES, SENTENCE2_NAMES)  # what is looked for in a table
LABEL_WORDS = {"是": "1", "否": "0", "相似": "1", "不相似": "0", "true": "1", "false": "0", "yes": "1", "no": "0"}

XLSX_ROWS = 1_048_576  # with the names
SEPARATORS = {
    "\t": "tabs: rename the file to .tsv, or pass --format tsv to prepare",
    ",": "commas: rename the file to .csv, or pass --format csv to prepare",
    ";": "semicolons, which no format here has: save it as xlsx, or with commas",
}

Write = Callable[[list[dict]], None]
TableRecord = tuple[int, str, dict | RowError | None]  # line number, text, row (None: blank) or what is wrong with it


@dataclass
class FileArguments:
    """What a file of pairs does not say about itself."""

    sheet: str | None = option(None, "Sheet to read of a workbook with several.")
    encoding: str = option("utf-8", "Encoding of text.", ENCODINGS)

    @property
    def options(self) -> FileOptions:
        return FileOptions(self.sheet, self.encoding)


@dataclass
class TableArguments(FileArguments):
    """What labels stand for."""

    label_values: list[str] | None = option(
        None, "All labels and what they stand for, as in 否=0 是=1; default: numbers, and 是, 相似, true, yes as 1, "
        "否, 不相似, false, no as 0.", commas=True,
    )  # fmt: skip


OF_FILES = ("sheet", "encoding")
OF_TABLES = (*OF_FILES, "label_values")


def stem_of(path: str | Path) -> str:
    """The name of a file without its ending: `part-1` of `a/part-1.csv.gz`."""
    name = Path(path).name
    return name[: len(name) - len(ending_of(path))]


def known_format(path: str | Path, flag: str) -> str:
    """As `format_of`, for the file of a flag."""
    format = format_of(path)
    if format is None:
        raise InputError(
            f"{flag} {path}: expected a file that ends in {', '.join(FORMATS)}, text also in .gz. Rename or convert it."
        )
    return format


def separator_hint(fields: Sequence[object]) -> str:
    """What to do about line 1 of a TSV or CSV file that other characters separate; empty if none do."""
    line = str(fields[0]) if len(fields) == 1 else ""
    return next((f" Line 1 holds {advice}." for separator, advice in SEPARATORS.items() if separator in line), "")


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
        """The label of row `number`, from 1."""
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
    sentences: tuple[str, ...] = ()
    header: bool = False
    options: FileOptions = AS_USUAL

    def records(self, columns: Sequence[str] | None = None) -> Iterator[TableRecord]:
        """Streams line number, text and `{column: value}` of all rows; see `rows`."""
        header, width = self.header, len(self.names)
        for number, text, fields in read_records(self.path, self.format, columns, self.options):
            if header and fields:
                header = False
                continue
            if isinstance(fields, list):
                wrong = None if len(fields) == width else RowError(f"{width} columns", str(len(fields)))
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
        empty = True
        for number, _, row in self.records(columns):
            if row is None and keep_empty:
                row = dict.fromkeys(self.names) | dict.fromkeys(self.sentences, "")
            try:
                row = self.checked(row, columns or (), keep_empty)
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
            if not isinstance(row[name], str):
                raise RowError(f"text in {name}", repr(row[name]))
            if not keep_empty and not row[name].strip():
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
        flag: the flag of `wanted`, for messages; empty if there is none.
        what: the flag of `path`.
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
        return Table(path, format, ("text",), ("text",), options=options)
    roles = [None] * len(known) if wanted is None else [[name] for name in wanted]
    table = find_columns(path, format, roles, known, flag, options)
    if len(set(table.names)) < len(table.names):
        raise InputError(f"{path}, line 1: expected different columns, got {table.names}. Rename one of two.")
    if not table.header and wanted is None and format not in KEYED:
        logger.info("%s: no header, the first columns are read; %s says otherwise.", path, flag or "one")
    return table


def find_columns(
    path: Path,
    format: str,
    wanted: Sequence[Sequence[str] | None],
    known: Sequence[Sequence[str]],
    flag: str,
    options: FileOptions = AS_USUAL,
    header: bool | None = None,
) -> Table:
    """Finds columns by the first row of a file.

    It is a header if columns are asked for by name, if it has known names of the (first two) columns, or if it is all
    text in a sheet in which only sentences are looked for. A column that is neither asked for nor known by name has the
    place that it has in `known`, if there are no further columns but a label behind two sentences.

    Args:
        wanted: for each column, names of which the first one present is taken, or its position from 0; None to find it.
        known: the usual names of each.
        header: whether line 1 holds names; default: found out.
    """
    first, keyed = first_fields(path, format, options), format in KEYED
    names = tuple(str(field).strip() for field in first)
    found = all(set(some) & set(names) for some in known[:2])
    numbers_are_names = keyed or (header is not False and all(some and some[0] in names for some in wanted))
    fixed = [some is not None and some[0].isdecimal() and len(some) == 1 and not numbers_are_names for some in wanted]
    all_text = all(isinstance(field, str) and field.strip() for field in first)
    named_sheet = format == "xlsx" and len(known) < 3 and not any(wanted) and all_text
    if keyed or header is None:
        by_name = any(some and not position for some, position in zip(wanted, fixed, strict=True))
        header = keyed or found or by_name or named_sheet
    in_order = len(names) <= len(known) or (
        len(known) == 2 and [is_label(one) for one in first] == [False, False, True]
    )
    if keyed or (named_sheet and not found):
        in_order = len(names) == len(known) == 1
    positions: list[int] = []
    for i, (some, usual) in enumerate(zip(wanted, known, strict=True)):
        present = (names.index(name) for name in some or usual if header and name in names)
        elsewhere = i if in_order and not some else len(names)
        positions.append(int(some[0]) if some and fixed[i] else next(present, elsewhere))
    columns = [names[position] for position in set(positions) if position < len(names)]
    if len(columns) < len(known) or (header and any(names.count(name) > 1 for name in columns)):
        roles = ", ".join(" or ".join(some or usual[:2]) for some, usual in zip(wanted, known, strict=True))
        by_flag = f"Name them with {flag}: names of line 1, or positions from 0 if it has none."
        raise InputError(
            f"{path}, line 1: expected, each once, the columns {roles}, got {', '.join(names)}. "
            f"{by_flag if flag else 'Rename them.'}{separator_hint(names)}"
        )
    if not header:
        made_up = {position: some[0] for position, some in zip(positions, known, strict=True)}
        if len(names) == 3 and set(made_up) == {0, 1}:
            made_up[2] = "label"
        names = tuple(made_up.get(i, f"column{i + 1}") for i in range(len(names)))
    return Table(path, format, names, tuple(names[i] for i in positions), header and not keyed, options)


def first_fields(path: Path, format: str, options: FileOptions) -> list | dict:
    """The columns of Parquet, the first row of JSON lines that can be read, or the fields of line 1."""
    if format == "parquet":
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)
    problem = InputError(f"{path} is empty: it has no rows. Name another file.")
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError):
            problem = InputError(f"{place(path, format, number)}: {fields}. Correct it: columns are read here.")
            if format not in KEYED:
                break
        elif fields:
            return fields
    raise problem


def check_output(path: str | Path, input_path: str | Path, overwrite: bool) -> None:
    """Refuses an output file that could not be written, or would replace what is there."""
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
    """
    format = known_format(path, "--output")
    with writing(path), partial_file(path) as partial, WRITERS[format](partial, names, str(path)) as write:

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
                f"{path}: a column of Parquet has one type, and later rows have another ({error}). Write .jsonl."
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
