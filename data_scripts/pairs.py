"""The checked pairs (sentence1, sentence2, label) that the rows of a raw file hold.

    怎么还款,如何还款,1                                                                      a pair
    {"query": "怎么还款", "pos": ["如何还款"], "neg": ["怎么借款"], "pos_scores": [0.98], "neg_scores": [0.31]}
    {"anchor": "怎么还款", "positive": "如何还款", "negative": "怎么借款"}                    a query with texts

Nothing is padded, cut, guessed or left out without being counted.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cosent.data.files import LABEL_NAMES, SENTENCE1_NAMES, SENTENCE2_NAMES, TableRecord, value_of
from cosent.data.manifest import COLUMNS, NLI_CLASSES, sha256_of_file
from cosent.data.records import RowError, as_gb18030, as_text, place
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


@dataclass(frozen=True)
class LabelRange:
    """Labels that a corpus may hold.

    Args:
        kind: one of `cosent.data.manifest.LABEL_KINDS`.
        low, high: both included; -`LARGEST` and `LARGEST` for scores.
        values: those of `--label_values`: what each label stands for, and no other may be there.
        words: counts the labels that stand for another value, with that value.
    """

    kind: str
    low: float
    high: float
    values: Mapping[str, str] | None = None
    words: Counter = field(default_factory=Counter)

    def check(self, label: object, name: str = "a label") -> float:
        """The number that training uses for a label; NLI classes become their rank."""
        value = value_of(label, self.values) if self.kind == "binary" or self.values else label
        if self.values and value is None:
            raise RowError(f"one of {', '.join(self.values)} (--label_values)", f"{label!r}")
        if self.kind == "nli":
            if not isinstance(value, str) or value.strip() not in NLI_CLASSES:
                # 0 is entailment in some corpora and contradiction in others
                raise RowError(f"an NLI label, one of {', '.join(NLI_CLASSES)} (numbers are ambiguous)", f"{label!r}")
            number = float(NLI_CLASSES.index(value.strip()))
        else:
            try:
                number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
            except (TypeError, ValueError):
                number = math.nan
            if not self.low <= number <= self.high or (self.kind == "binary" and number % 1):
                numbers = "a finite number" if self.high == LARGEST else f"a number from {self.low:g} to {self.high:g}"
                raise RowError(f"{name} that is {'0 or 1' if self.kind == 'binary' else numbers}", f"{label!r}")
        if value is not label:
            self.words[str(label).strip(), value] += 1
        return number


def check_text(value: object, name: str) -> str:
    """A sentence without spaces around it."""
    if not isinstance(value, str):
        raise RowError(f"text in {name}", f"{value!r}")
    sentence = value.strip()
    if not any(character.isprintable() and not character.isspace() for character in sentence):
        raise RowError(f"a sentence in {name}", "an empty sentence")
    return sentence


@dataclass(frozen=True)
class PairRows:
    """Rows of one pair each, in the columns of sentence1, sentence2 and label."""

    columns: tuple[str, ...] = COLUMNS

    def pairs(self, row: dict, labels: LabelRange) -> list[Pair]:
        """The pair of a row; none if its annotators agreed on no label."""
        missing = [column for column in self.columns if column not in row]
        if missing:
            raise RowError(f"the keys {', '.join(self.columns)}", f"a row without {', '.join(missing)}")
        sentence1, sentence2, label = (row[column] for column in self.columns)
        if labels.kind == "nli" and isinstance(label, str) and label.strip() == NO_GOLD_LABEL:
            return []
        return [(check_text(sentence1, "sentence1"), check_text(sentence2, "sentence2"), labels.check(label))]

    def group(self, pair: Pair) -> str:
        """What never gets into two splits: pairs with the same text here."""
        return "\t".join(sorted(pair[:2]))


@dataclass
class QueryRows:
    """Rows of a query and its texts; each text becomes a pair with the query.

    Args:
        query: column of the query.
        scored: whether the labels are the scores in `pos_scores` and `neg_scores`; else 1 and 0.
        add_prompt: whether the prompt of a row is written before its query.
    """

    query: str
    scored: bool = False
    add_prompt: bool = False

    def group(self, pair: Pair) -> str:
        return pair[0]

    def pairs(self, row: dict, labels: LabelRange) -> list[Pair]:
        """The query with each positive, then with each negative."""
        if self.query not in row:
            raise RowError(f"the key {self.query}", f"a row with the keys {', '.join(row)}")
        query, prompt = check_text(row[self.query], self.query), prompt_of(row)
        if self.add_prompt:
            query = prompt + query
        pairs = []
        for side, (columns, label) in SIDES.items():
            texts = texts_of(row, columns)
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


def texts_of(row: dict, columns: re.Pattern) -> list[str]:
    """The texts of some columns: one, a list of them, or none (null) in each."""
    texts = []
    for name, value in row.items():
        if value is not None and columns.fullmatch(name):
            some = (
                [(f"{name}[{i}]", text) for i, text in enumerate(value)] if isinstance(value, list) else [(name, value)]
            )
            texts += [check_text(text, where) for where, text in some]
    return texts


def query_column(names: Iterable[str]) -> str | None:
    """The column of the query, or None if rows with these columns hold no query with texts."""
    has_texts = any(map(SIDES["pos_scores"][0].fullmatch, names))
    return next((name for name in QUERY_NAMES if name in names), None) if has_texts else None


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


@dataclass(frozen=True)
class RawFile:
    """One raw file of a split, or rows of the Hub or the demo corpus under a made-up path."""

    path: Path
    records: Callable[[], Iterator[TableRecord]]
    rows: PairRows | QueryRows = PairRows()
    format: str = "tsv"

    def place(self, number: int) -> str:
        return place(self.path, self.format, number)

    def sha256(self) -> str:
        if self.path.is_file():
            return sha256_of_file(self.path)
        digest = hashlib.sha256()
        for _, text, _ in self.records():
            digest.update(text.encode("utf-8") + b"\n")
        return digest.hexdigest()

    def pairs(self, labels: LabelRange, tally: Tally, on_bad_rows: str) -> Iterator[tuple[int, Pair]]:
        """Checked pairs and the lines they come from, in order; what is left out is counted in `tally`.

        Args:
            on_bad_rows: `error` stops at the first bad row, `skip` counts and lists it.
        """
        counts = {"name": "/".join(self.path.parts[-2:]), "rows": 0}
        tally.files.append(counts)
        for number, text, row in self.records():
            if row is None:
                tally.left_out["blank line"] += 1
                continue
            try:
                if isinstance(row, RowError):
                    raise row
                pairs = self.rows.pairs(row, labels)
            except RowError as error:
                text = printable(text or as_text(row))
                if on_bad_rows == "skip":
                    bad = {"file": str(self.path), "line": number, "text": text, "reason": str(error)}
                    tally.bad_rows.append(bad)
                    tally.left_out["bad row"] += 1
                    continue
                advice = "Correct the line, or leave such rows out, counted and listed, with --on_bad_rows skip."
                if not counts["rows"]:
                    advice = (
                        f"Correct the line. If all are like it: name the columns with {COLUMN_FLAGS}, pass --header if "
                        "this is one, or say what labels stand for, as in --label_values 否=0 是=1."
                    )
                raise InputError(f"{self.place(number)}: {error}.\n  {text!r}\n{advice}") from error
            if pairs:
                counts["rows"] += 1
            else:
                tally.left_out["no gold label (-)"] += 1
            for pair in pairs:
                yield number, pair


def printable(text: str) -> str:
    """A row as text that can be printed: what is not UTF-8 as GB18030, or else as the numbers of its bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = as_gb18030(text) or text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
