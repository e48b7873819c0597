"""Read checked pairs from raw files, row by row; nothing is padded, cut, guessed or skipped without being counted."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cosent.errors import InputError
from data_scripts.checks import NO_GOLD_LABEL, LabelRange, RowError, check_label, check_text, not_utf8

SENTENCE1_NAMES = ("sentence1", "text1", "s1", "premise", "query1", "question1")
SENTENCE2_NAMES = ("sentence2", "text2", "s2", "hypothesis", "query2", "question2")
LABEL_NAMES = ("gold_label", "label", "score", "similarity")
COLUMN_NAMES = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SHOWN_CHARACTERS = 200  # of a bad row, in errors and in the manifest


@dataclass(frozen=True)
class Layout:
    """Format of the rows of a raw file.

    Args:
        format: `tsv` (tabs, never quoted), `csv` (quoted where needed) or `jsonl` (one object per line).
        header: whether line 1 holds column names instead of a pair.
        columns: columns of sentence1, sentence2 and label: 0-based positions, or names of which the first one present
            is taken.
        width: number of columns of every row; None takes that of line 1.
    """

    format: str
    header: bool = False
    columns: tuple[int | tuple[str, ...], ...] = (0, 1, 2)
    width: int | None = 3


@dataclass
class Tally:
    """Counts of a split: rows per file, rows left out by reason, and the bad rows."""

    files: list[dict] = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)
    bad_rows: list[dict] = field(default_factory=list)


Record = tuple[int, str, list | dict | RowError]  # line number, its text, its fields (or why it has none)


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
    """Splits lines into fields; a blank line has none.

    Args:
        format: `tsv`, `csv` or `jsonl`.
    """
    for number, text, fields in _read_csv(path) if format == "csv" else _read_by_line(path, format):
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


def _json_object(text: str) -> dict | RowError:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        return RowError("one JSON object per line", f"text that is not JSON ({error.msg}, column {error.colno})")
    return value if isinstance(value, dict) else RowError("one JSON object per line", f"a JSON {type(value).__name__}")


def find_columns(names: list[str], layout: Layout, path: Path) -> tuple[int | str, ...]:
    """Finds the three columns among `names` (a header, or the keys of the first JSON object).

    Raises:
        InputError: a column is missing, or taken twice.
    """
    positions = [wanted for wanted in layout.columns if isinstance(wanted, int)]
    if layout.width is None and positions and max(positions) >= len(names):
        raise InputError(
            f"{path}, line 1: expected a column {max(positions)} (counted from 0), got {len(names)} columns: {names}. "
            "Correct the column flags, or name the separator with --format."
        )
    found = []
    for wanted in layout.columns:
        candidates = [name for name in wanted if name in names] if isinstance(wanted, tuple) else [wanted]
        if not candidates:
            raise InputError(
                f"{path}, line 1: expected a column named {' or '.join(map(repr, wanted))}, got {names}. Taking other "
                "columns would train on the wrong text. Name them with --sentence1_column, --sentence2_column and "
                "--label_column, or correct the first line."
            )
        named = candidates[0]
        found.append(names.index(named) if layout.format != "jsonl" and isinstance(named, str) else named)
    if len(set(found)) < len(found):
        raise InputError(
            f"{path}, line 1: expected three different columns, got {found} of {names}. A pair of a column with itself "
            "teaches nothing. Name all three with --sentence1_column, --sentence2_column and --label_column."
        )
    return tuple(found)


def _pair(fields: list | dict | RowError, columns: tuple, width: int | None, labels: LabelRange) -> tuple | None:
    """Checked (sentence1, sentence2, label) of a row, or None where the annotators found no gold label."""
    if isinstance(fields, RowError):
        raise fields
    if isinstance(fields, list) and len(fields) != width:
        raise RowError(f"{width} columns", f"{len(fields)}")
    missing = [column for column in columns if isinstance(fields, dict) and column not in fields]
    if missing:
        raise RowError(f"the keys {', '.join(columns)}", f"a row without {', '.join(missing)}")
    sentence1, sentence2, label = (fields[column] for column in columns)
    if labels.kind == "nli" and isinstance(label, str) and label.strip() == NO_GOLD_LABEL:
        return None
    return check_text(sentence1, "sentence1"), check_text(sentence2, "sentence2"), check_label(label, labels)


def read_pairs(
    name: str, records: Iterable[Record], layout: Layout, labels: LabelRange, tally: Tally, on_bad_rows: str
) -> Iterator[tuple[str, str, float]]:
    """Checked pairs of one file, in its order; rows that are left out are counted in `tally`.

    Args:
        name: the file, as errors and the manifest call it.
        on_bad_rows: `error` stops at the first bad row, `skip` counts and lists it.

    Raises:
        InputError: a bad row, with file, line, text, what was expected and what to do.
    """
    columns, width = None, layout.width
    rows = 0
    for number, text, fields in records:
        if isinstance(fields, list) and not fields:
            tally.left_out["blank line"] += 1
            continue
        if columns is None and not isinstance(fields, RowError):
            names = [str(field).strip() for field in fields]
            columns = find_columns(names, layout, Path(name))
            width = width or len(names)
            if layout.header:
                continue
        try:
            pair = _pair(fields, columns, width, labels)
        except RowError as error:
            _report(name, number, text, error, tally, on_bad_rows)
            continue
        if pair is None:
            tally.left_out["no gold label (-)"] += 1
            continue
        rows += 1
        yield pair
    tally.files[-1]["rows"] = rows


def _report(name: str, number: int, text: str, error: RowError, tally: Tally, on_bad_rows: str) -> None:
    shown = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
    if on_bad_rows == "error":
        header = " If line 1 holds column names, pass --header." if number == 1 and not text.startswith("{") else ""
        raise InputError(
            f"{name}, line {number}: expected {error.expected}, got {error.got}.\n  {shown!r}\n"
            "A guess at what it means would train on a wrong pair. Correct the line, or pass --on_bad_rows skip: such "
            f"rows are then left out, counted and listed in the manifest.{header}"
        ) from error
    tally.left_out["bad row"] += 1
    tally.bad_rows.append({"file": name, "line": number, "text": shown, "reason": str(error)})
