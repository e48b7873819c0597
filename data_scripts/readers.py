"""Read checked pairs from records; nothing is padded, cut, guessed or skipped without being counted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cosent.data.files import KEYED, LABEL_NAMES, SENTENCE1_NAMES, SENTENCE2_NAMES, Record, RowError, as_gb18030, place
from cosent.errors import InputError
from data_scripts.checks import NO_GOLD_LABEL, LabelError, LabelRange, check_label, check_text

COLUMN_NAMES = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
SHOWN_CHARACTERS = 200  # of a bad row, in errors and in the manifest
SKIP_ADVICE = (
    "A guess at what it means would train on a wrong pair. Correct the line, or pass --on_bad_rows skip: such rows are "
    "then left out, counted and listed in the manifest."
)

Pair = tuple[str, str, float]


class Shape(Protocol):
    """What the rows of a file look like, and the pairs that a row gives."""

    format: str
    header: bool

    def parser(
        self, names: list[str], path: Path, labels: LabelRange, words: Counter
    ) -> Callable[[list | dict], list[Pair]]:
        """Returns the function from the fields of a row to its checked pairs, which raises `RowError`.

        Args:
            names: fields of the first row, or its keys.
            words: counts the labels that stand for another value, with that value.

        Raises:
            InputError: columns are missing from `names`.
        """

    def group(self, pair: Pair) -> str:
        """What never gets into two splits: pairs with the same text here."""


@dataclass(frozen=True)
class Layout:
    """Shape of a file with one pair per row.

    Args:
        format: `tsv` (tabs, never quoted), `csv` (quoted where needed), `jsonl` (one object per line),
            `parquet` or `xlsx`.
        header: whether line 1 holds column names instead of a pair.
        columns: columns of sentence1, sentence2 and label: 0-based positions, or names of which the first one present
            is taken.
        width: number of columns of every row; None takes that of line 1.
    """

    format: str
    header: bool = False
    columns: tuple[int | tuple[str, ...], ...] = (0, 1, 2)
    width: int | None = 3

    def parser(
        self, names: list[str], path: Path, labels: LabelRange, words: Counter
    ) -> Callable[[list | dict], list[Pair]]:
        columns, width = find_columns(names, self, path), self.width or len(names)

        def pairs(fields: list | dict) -> list[Pair]:
            found = _pair(fields, columns, width, labels)
            label = fields[columns[2]]
            if found and (value := labels.value(label)) is not label:
                words[str(label).strip(), value] += 1
            return found

        return pairs

    def group(self, pair: Pair) -> str:
        return "\t".join(sorted(pair[:2]))


@dataclass
class Tally:
    """Counts of a split: rows per file, rows left out by reason, the bad rows, repeated and contradictory pairs.

    `words` counts the labels that are words, each with its value.
    """

    files: list[dict] = field(default_factory=list)
    left_out: Counter = field(default_factory=Counter)
    bad_rows: list[dict] = field(default_factory=list)
    words: Counter = field(default_factory=Counter)
    repeated: int = 0
    contradictory: int = 0


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
                "--label_column, or correct the first line (queries have query, pos and neg, or anchor, positive and "
                "negative)."
            )
        named = candidates[0]
        if names.count(str(named)) > 1:
            raise InputError(f"{path}, line 1: expected one column {named}, got {names}. Rename the others.")
        found.append(names.index(named) if layout.format not in KEYED and isinstance(named, str) else named)
    if len(set(found)) < len(found):
        raise InputError(
            f"{path}, line 1: expected three different columns, got {found} of {names}. A pair of a column with itself "
            "teaches nothing. Name all three with --sentence1_column, --sentence2_column and --label_column."
        )
    return tuple(found)


def check_width(fields: list | dict, width: int) -> None:
    if isinstance(fields, list) and len(fields) != width:
        raise RowError(f"{width} columns", f"{len(fields)}")


def _pair(fields: list | dict, columns: tuple, width: int, labels: LabelRange) -> list[Pair]:
    """The checked pair of a row; none where the annotators found no gold label."""
    check_width(fields, width)
    missing = [column for column in columns if isinstance(fields, dict) and column not in fields]
    if missing:
        raise RowError(f"the keys {', '.join(columns)}", f"a row without {', '.join(missing)}")
    sentence1, sentence2, label = (fields[column] for column in columns)
    if labels.kind == "nli" and isinstance(label, str) and label.strip() == NO_GOLD_LABEL:
        return []
    return [(check_text(sentence1, "sentence1"), check_text(sentence2, "sentence2"), check_label(label, labels))]


def read_pairs(
    name: str, records: Iterable[Record], shape: Shape, labels: LabelRange, tally: Tally, on_bad_rows: str
) -> Iterator[tuple[int, Pair]]:
    """Checked pairs of one file and the lines they come from, in its order; what is left out is counted in `tally`.

    Args:
        name: the file, as errors and the manifest call it.
        on_bad_rows: `error` stops at the first bad row, `skip` counts and lists it.

    Raises:
        InputError: a bad row, with file, line, text, what was expected and what to do.
    """
    parse = None
    rows = 0
    records = iter(records)
    for number, text, fields in records:
        if isinstance(fields, list) and not fields:
            tally.left_out["blank line"] += 1
            continue
        if parse is None and not isinstance(fields, RowError):
            parse = shape.parser([str(field).strip() for field in fields], Path(name), labels, tally.words)
            if shape.header:
                continue
        try:
            if parse is None or isinstance(fields, RowError):
                raise fields
            pairs = parse(fields)
        except RowError as error:
            if on_bad_rows == "error":
                advice = SKIP_ADVICE
                if not rows and _all_fail(records, parse, error):
                    advice = _every_row_advice(error, fields, shape, labels)
                if number == 1 and shape.format not in KEYED:
                    advice += " If line 1 holds column names, pass --header."
                raise bad_row_error(place(name, shape.format, number), text, error, advice) from error
            tally.left_out["bad row"] += 1
            tally.bad_rows.append({"file": name, "line": number, "text": _shown(text), "reason": str(error)})
            continue
        if not pairs:
            tally.left_out["no gold label (-)"] += 1
            continue
        rows += 1
        for pair in pairs:
            yield number, pair
    tally.files[-1]["rows"] = rows


def _all_fail(records: Iterator[Record], parse: Callable | None, error: RowError) -> bool:
    """Whether all further rows fail for the same reason as one before."""
    for _, _, fields in records:
        try:
            if isinstance(fields, RowError):
                raise fields
            if fields:
                if parse is not None:
                    parse(fields)
                return False
        except RowError as other:
            if other.expected != error.expected:
                return False
    return True


def bad_row_error(where: str, text: str, error: RowError, advice: str) -> InputError:
    return InputError(f"{where}: expected {error.expected}, got {error.got}.\n  {_shown(text)!r}\n{advice}")


def _every_row_advice(error: RowError, fields: list | dict | RowError, shape: Shape, labels: LabelRange) -> str:
    """What to do about a file of which no row can be used."""
    advice = "Check --format and the columns, or leave the split of this file out with --leave_out."
    if isinstance(error, LabelError) and isinstance(shape, Layout) and not isinstance(fields, RowError):
        columns = list(fields.items() if isinstance(fields, dict) else enumerate(fields))
        shown = ", ".join(f"{column}: {str(value)[:20]!r}" for column, value in columns)
        fitting = [column for column, value in columns if _fits(value, labels)]
        named = f"--label_column {fitting[0]}" if len(fitting) == 1 else "--label_column"
        advice = (
            f"Its columns are {shown}. Name them with --sentence1_column, --sentence2_column and {named}, or say what "
            "the labels stand for, as in --label_values 否=0 是=1."
        )
    return f"No row of the file can be used, all for this reason. {advice}"


def _fits(value: object, labels: LabelRange) -> bool:
    try:
        check_label(value, labels)
    except RowError:
        return False
    return True


def _shown(text: str) -> str:
    """A row as text that can be printed: what is not UTF-8 as GB18030, or else as the numbers of its bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = as_gb18030(text) or text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
