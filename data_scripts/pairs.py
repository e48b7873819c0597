"""Layouts of raw rows, and the checked pairs (sentence1, sentence2, label) that rows of each hold.

    怎么还款,如何还款,1                                                                      a pair
    {"query": "怎么还款", "pos": ["如何还款"], "neg": ["怎么借款"], "pos_scores": [0.98], "neg_scores": [0.31]}
    {"anchor": "怎么还款", "positive": "如何还款", "negative": "怎么借款"}                    a query with texts

Nothing is padded, cut, guessed or left out without being counted.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosent.data.files import LABEL_NAMES, SENTENCE1_NAMES, SENTENCE2_NAMES, value_of
from cosent.data.manifest import NLI_CLASSES
from cosent.data.records import KEYED, Record, RowError, as_gb18030, place
from cosent.errors import InputError

COLUMN_NAMES = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
COLUMN_FLAGS = "--sentence1_column, --sentence2_column and --label_column"
NO_GOLD_LABEL = "-"  # SNLI and OCNLI: the annotators found no majority
LARGEST = 3.4028234e38  # of float32
SHOWN_CHARACTERS = 200  # of a bad row, in errors and in the manifest

QUERY_NAMES = ("query", "anchor")
PROMPT = "prompt"
SIDES = {  # by the key of its scores: the columns of its texts, and their label without scores
    "pos_scores": (re.compile(r"(pos|positive)(_\d+)?"), 1.0),
    "neg_scores": (re.compile(r"(neg|negative)(_\d+)?"), 0.0),
}

Pair = tuple[str, str, float]
Parser = Callable[[list | dict], list[Pair]]  # from the fields of a row to its checked pairs; raises `RowError`


class LabelError(RowError):
    """Error for a label that a corpus of this kind does not hold."""


@dataclass(frozen=True)
class LabelRange:
    """Labels that a corpus may hold: `kind` as in `cosent.data.manifest.LABEL_KINDS`, both ends included.

    `ANY_SCORE` takes any finite float32, and the range of the corpus is then that of its rows. `values` are those of
    `--label_values`: what each label stands for, and no other may be there.
    """

    kind: str
    low: float
    high: float
    values: Mapping[str, str] | None = None

    def value(self, label: object) -> object:
        """What a label stands for: a number, or the name of an NLI class."""
        return value_of(label, self.values) if self.kind == "binary" or self.values else label

    def check(self, label: object, name: str = "a label") -> float:
        """The number that training uses for a label; NLI classes become their rank."""
        value = self.value(label)
        if self.values and value is None:
            raise LabelError(f"one of {', '.join(self.values)} (--label_values)", f"{label!r}")
        if self.kind == "nli":
            if not isinstance(value, str) or value.strip() not in NLI_CLASSES:
                # 0 is entailment in some corpora and contradiction in others
                raise LabelError(f"an NLI label, one of {', '.join(NLI_CLASSES)} (numbers are ambiguous)", f"{label!r}")
            return float(NLI_CLASSES.index(value.strip()))
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = math.nan
        if not self.low <= number <= self.high or (self.kind == "binary" and number % 1):
            numbers = "a finite number" if self.high == LARGEST else f"a number from {self.low:g} to {self.high:g}"
            raise LabelError(f"{name} that is {'0 or 1' if self.kind == 'binary' else numbers}", f"{label!r}")
        return number


ANY_SCORE = LabelRange("graded", -LARGEST, LARGEST)


def check_text(value: object, name: str) -> str:
    """A sentence without spaces around it."""
    if not isinstance(value, str):
        raise RowError(f"text in {name}", f"{value!r}")
    sentence = value.strip()
    if not any(character.isprintable() and not character.isspace() for character in sentence):
        raise RowError(f"a sentence in {name}", "an empty sentence")
    return sentence


def check_width(fields: list | dict, width: int) -> None:
    if isinstance(fields, list) and len(fields) != width:
        raise RowError(f"{width} columns", f"{len(fields)}")


@dataclass(frozen=True)
class Layout:
    """Layout of a file with one pair per row.

    Args:
        format: as in `cosent.data.files.read_records`.
        header: whether line 1 holds column names instead of a pair.
        columns: columns of sentence1, sentence2 and label: 0-based positions, or names of which the first one present
            is taken.
        width: number of columns of every row; None takes that of line 1.
    """

    format: str
    header: bool = False
    columns: tuple[int | tuple[str, ...], ...] = (0, 1, 2)
    width: int | None = 3

    def parser(self, names: list[str], path: Path, labels: LabelRange, words: Counter) -> Parser:
        """Returns the parser of the rows of a file.

        Args:
            names: fields of the first row, or its keys.
            words: counts the labels that stand for another value, with that value.
        """
        columns, width = self.find_columns(names, path), self.width or len(names)

        def pairs(fields: list | dict) -> list[Pair]:
            check_width(fields, width)
            missing = [column for column in columns if isinstance(fields, dict) and column not in fields]
            if missing:
                raise RowError(f"the keys {', '.join(columns)}", f"a row without {', '.join(missing)}")
            sentence1, sentence2, label = (fields[column] for column in columns)
            if labels.kind == "nli" and isinstance(label, str) and label.strip() == NO_GOLD_LABEL:
                return []
            pair = check_text(sentence1, "sentence1"), check_text(sentence2, "sentence2"), labels.check(label)
            if (value := labels.value(label)) is not label:
                words[str(label).strip(), value] += 1
            return [pair]

        return pairs

    def find_columns(self, names: list[str], path: Path) -> tuple[int | str, ...]:
        """The three columns among `names`, by position or by key."""
        found: list[int | str] = []
        for wanted in self.columns:
            present = [wanted] if isinstance(wanted, int) else [name for name in wanted if name in names]
            if not present or (self.width is None and isinstance(wanted, int) and wanted >= len(names)):
                which = wanted if isinstance(wanted, int) else "named " + " or ".join(map(repr, wanted))
                raise InputError(
                    f"{path}, line 1: expected a column {which}, got {names}. Name the columns with {COLUMN_FLAGS} "
                    "(positions count from 0), or correct line 1 or --format; queries have query, pos and neg, or "
                    "anchor, positive and negative."
                )
            column = present[0]
            if names.count(str(column)) > 1:
                raise InputError(f"{path}, line 1: expected one column {column}, got {names}. Rename the others.")
            found.append(names.index(column) if isinstance(column, str) and self.format not in KEYED else column)
        if len(set(found)) < len(found):
            raise InputError(
                f"{path}, line 1: expected three different columns, got {found} of {names}. Name all three with "
                f"{COLUMN_FLAGS}."
            )
        return tuple(found)

    def group(self, pair: Pair) -> str:
        """What never gets into two splits: pairs with the same text here."""
        return "\t".join(sorted(pair[:2]))


@dataclass(frozen=True)
class QueryLayout:
    """Layout of a file with a query and its texts in each row; each text becomes a pair with the query.

    Args:
        query: column of the query.
        lists: whether each column of texts holds a list of them.
        scored: whether the labels are the scores in `pos_scores` and `neg_scores`; else 1 and 0.
        add_prompt: whether the prompt of a row is written before its query.
    """

    format: str
    header: bool
    query: str
    lists: bool = False
    scored: bool = False
    add_prompt: bool = False

    def parser(self, names: list[str], path: Path, labels: LabelRange, words: Counter) -> Parser:
        return lambda fields: self.pairs(by_name(fields, names), labels)

    def group(self, pair: Pair) -> str:
        return pair[0]

    def pairs(self, row: dict, labels: LabelRange) -> list[Pair]:
        """The checked pairs of a row: the query with each positive, then with each negative."""
        if self.query not in row:
            raise RowError(f"the key {self.query}", f"a row with the keys {', '.join(row)}")
        query, prompt = check_text(row[self.query], self.query), prompt_of(row)
        if self.add_prompt:
            query = prompt + query
        pairs = []
        for side, (columns, label) in SIDES.items():
            texts = self._texts(row, columns)
            scores = row.get(side) if self.scored else [label] * len(texts)
            if scores is None and not texts:
                continue
            if not isinstance(scores, list) or len(scores) != len(texts):
                got = f"{len(scores)} scores" if isinstance(scores, list) else f"{scores!r}"
                raise RowError(f"a list of {len(texts)} scores in {side}, one for each text", got)
            if self.scored:
                scores = [labels.check(score, f"a score in {side}[{i}]") for i, score in enumerate(scores)]
            pairs += [(query, text, score) for text, score in zip(texts, scores, strict=True)]
        if not pairs:
            raise RowError("a text in pos or neg", f"none in {', '.join(row)}")
        return pairs

    def _texts(self, row: dict, columns: re.Pattern) -> list[str]:
        """The texts of one side; a column without a value (null) holds none."""
        texts = []
        for name, value in row.items():
            if value is None or not columns.fullmatch(name):
                continue
            if isinstance(value, list) != self.lists:
                expected = f"a list of texts in {name}" if self.lists else f"a text in {name}, as in the first row"
                raise RowError(expected, f"{value!r}")
            places = [(f"{name}[{i}]", text) for i, text in enumerate(value)] if self.lists else [(name, value)]
            texts += [check_text(text, where) for where, text in places]
        return texts


def query_column(names: Iterable[str]) -> str | None:
    """The column of the query, or None if rows with these columns hold no query with texts."""
    names = list(names)
    queries = [name for name in QUERY_NAMES if name in names]
    return queries[0] if queries and any(map(SIDES["pos_scores"][0].fullmatch, names)) else None


def by_name(fields: list | dict, names: list[str]) -> dict:
    """The fields of a row by column."""
    check_width(fields, len(names))
    return fields if isinstance(fields, dict) else dict(zip(names, fields, strict=True))


def prompt_of(row: dict) -> str:
    """The prompt of a row, empty if it has none."""
    prompt = row.get(PROMPT)
    if prompt is not None and not isinstance(prompt, str):
        raise RowError(f"text in {PROMPT}", f"{prompt!r}")
    return prompt or ""


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


def read_pairs(
    name: str,
    records: Iterable[Record],
    layout: Layout | QueryLayout,
    labels: LabelRange,
    tally: Tally,
    on_bad_rows: str,
) -> Iterator[tuple[int, Pair]]:
    """Checked pairs of one file and the lines they come from, in its order; what is left out is counted in `tally`.

    Args:
        name: the file, as errors and the manifest call it.
        on_bad_rows: `error` stops at the first bad row, `skip` counts and lists it.
    """
    parse: Parser | None = None
    rows = 0
    records = iter(records)
    for number, text, fields in records:
        if isinstance(fields, list) and not fields:
            tally.left_out["blank line"] += 1
            continue
        if parse is None and not isinstance(fields, RowError):
            names = [str(field).strip() for field in fields]
            parse = layout.parser(names, Path(name), labels, tally.words)
            if layout.header:
                continue
        try:
            if parse is None or isinstance(fields, RowError):
                raise fields
            pairs = parse(fields)
        except RowError as error:
            if on_bad_rows == "skip":
                tally.left_out["bad row"] += 1
                tally.bad_rows.append({"file": name, "line": number, "text": printable(text), "reason": str(error)})
                continue
            advice = "Correct the line, or leave such rows out, counted and listed, with --on_bad_rows skip."
            if not rows and not any_usable(records, parse):
                advice = advice_for_all(error, fields, layout, labels)
            if number == 1 and layout.format not in KEYED:
                advice += " If line 1 holds column names, pass --header."
            where = place(name, layout.format, number)
            raise InputError(f"{where}: {error}.\n  {printable(text)!r}\n{advice}") from error
        if not pairs:
            tally.left_out["no gold label (-)"] += 1
            continue
        rows += 1
        for pair in pairs:
            yield number, pair
    tally.files[-1]["rows"] = rows


def any_usable(records: Iterator[Record], parse: Parser | None) -> bool:
    """Whether any further row can be used."""
    for _, _, fields in records:
        if fields and not isinstance(fields, RowError):
            try:
                if parse is not None:
                    parse(fields)
                return True
            except RowError:
                pass
    return False


def advice_for_all(
    error: RowError, fields: list | dict | RowError, layout: Layout | QueryLayout, labels: LabelRange
) -> str:
    """What to do about a file of which no row can be used."""
    advice = "Check --format and the columns, or leave the split of this file out with --leave_out."
    if isinstance(error, LabelError) and isinstance(layout, Layout) and not isinstance(fields, RowError):
        columns = dict(fields.items() if isinstance(fields, dict) else enumerate(fields))
        shown = ", ".join(f"{column}: {str(value)[:20]!r}" for column, value in columns.items())
        fitting = []
        for column, value in columns.items():
            try:
                labels.check(value)
                fitting.append(str(column))
            except RowError:
                pass
        flag = f"--label_column {fitting[0]}" if len(fitting) == 1 else "--label_column"
        advice = (
            f"Its columns are {shown}. Name them with --sentence1_column, --sentence2_column and {flag}, or say what "
            "the labels stand for, as in --label_values 否=0 是=1."
        )
    return f"No row of the file can be used. {advice}"


def printable(text: str) -> str:
    """A row as text that can be printed: what is not UTF-8 as GB18030, or else as the numbers of its bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = as_gb18030(text) or text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
