"""Checked pairs (sentence1, sentence2, label) from the rows of a raw file.

    怎么还款,如何还款,1                                                                      a pair
    {"query": "怎么还款", "pos": ["如何还款"], "neg": ["怎么借款"], "pos_scores": [0.98], "neg_scores": [0.31]}
    {"anchor": "怎么还款", "positive": "如何还款", "negative": "怎么借款"}                    a query with texts

Nothing is padded, cut, guessed or left out without being counted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cosent.data.corpus import COLUMNS
from cosent.data.files import LABEL_NAMES, TableRecord, check_text
from cosent.data.formats import KEYED, RowError, as_text, is_blank, place
from cosent.data.labels import LabelReader
from cosent.errors import InputError

NO_GOLD_LABEL = "-"  # SNLI and OCNLI: the annotators found no majority
SHOWN_CHARACTERS = 200  # of a bad row, in errors and in the manifest

QUERY_NAMES = ("query", "anchor")
SIDES = {  # by the key of its scores: the columns of its texts, and their label without scores
    "pos_scores": (re.compile(r"(pos|positive)(_\d+)?|response"), 1.0),
    "neg_scores": (re.compile(r"(neg|negative)(_\d+)?|rejected_response"), 0.0),
}

Pair = tuple[str, str, float]


@dataclass(frozen=True)
class PairRows:
    """Rows of one pair each, in the columns of sentence1, sentence2 and label."""

    columns: Sequence[str] = COLUMNS

    def read(self, row: dict, labels: LabelReader, left_out: Counter) -> list[Pair]:
        """The pair of a row; none, which is counted, if its annotators agreed on no label."""
        missing = [column for column in self.columns if column not in row]
        if missing:
            raise RowError(f"the keys {', '.join(self.columns)}", f"a row without {', '.join(missing)}")
        sentence1, sentence2, label = (row[column] for column in self.columns)
        label = label.strip() if isinstance(label, str) else label
        if labels.labels.label_kind == "nli" and label == NO_GOLD_LABEL:
            left_out["no gold label (-)"] += 1
            return []
        sentence1, sentence2 = check_text(sentence1, "sentence1").strip(), check_text(sentence2, "sentence2").strip()
        return [(sentence1, sentence2, labels.read(label))]


@dataclass
class QueryRows:
    """Rows of a query and its texts; each text becomes a pair with the query.

    Args:
        query: column of the query.
        scored: whether the labels are the scores in `pos_scores` and `neg_scores`; else 1 and 0.
    """

    query: str
    scored: bool = False

    def read(self, row: dict, labels: LabelReader, left_out: Counter) -> list[Pair]:
        """The query with each positive, then with each negative; negatives without text are counted."""
        if self.query not in row:
            raise RowError(f"the key {self.query}", f"a row with the keys {', '.join(row)}")
        query = check_text(row[self.query], self.query).strip()
        pairs, empty = [], 0
        for side, (columns, label) in SIDES.items():
            texts = texts_of(row, columns)
            scores = row.get(side) if self.scored else [label] * len(texts)
            if scores is None and not texts:
                continue
            if not isinstance(scores, list) or len(scores) != len(texts):
                got = f"{len(scores)} scores" if isinstance(scores, list) else f"{scores!r}"
                raise RowError(f"a list of {len(texts)} scores in {side}, one for each text", got)
            for i, ((where, text), score) in enumerate(zip(texts.items(), scores, strict=True)):
                if label == 0 and isinstance(text, str) and is_blank(text):
                    empty += 1
                    continue
                label_of_text = labels.read(score, f"a score in {side}[{i}]") if self.scored else score
                pairs.append((query, check_text(text, where).strip(), label_of_text))
        if not pairs:
            raise RowError("a text in pos or neg", f"none in {', '.join(row)}")
        if empty:
            left_out["empty negative"] += empty
        return pairs


def texts_of(row: dict, columns: re.Pattern) -> dict[str, object]:
    """The texts of some columns, by their place: one, a list of them, or none (null) in each."""
    texts = {}
    for name, value in row.items():
        if value is not None and columns.fullmatch(name):
            texts |= (
                {f"{name}[{i}]": text for i, text in enumerate(value)} if isinstance(value, list) else {name: value}
            )
    return texts


def query_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """The columns of the query and of its first text; None if rows with these columns are pairs.

    A label next to positives alone belongs to a pair.
    """
    query = next((name for name in QUERY_NAMES if name in names), None)
    sides = [[name for name in names if columns.fullmatch(name)] for columns, _ in SIDES.values()]
    if query is None or not sides[0] or (not sides[1] and set(LABEL_NAMES) & set(names)):
        return None
    return query, sides[0][0]


@dataclass
class Tally:
    """What was read of one split, and why rows were left out.

    Args:
        files: name and rows of each file.
        left_out: rows by reason.
        bad_rows: file, line, text and reason of each.
        words: labels that are words, each with its value.
        repeated: rows that repeat an earlier pair and its label.
        contradictory: pairs with two different labels.
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
    words: str = ""  # how it is read, for the terminal

    def place(self, number: int) -> str:
        return place(self.path, self.format, number)

    def checked_pairs(self, labels: LabelReader, tally: Tally, on_bad_rows: str) -> Iterator[tuple[int, Pair]]:
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
                pairs = self.rows.read(row, labels, tally.left_out)
            except RowError as error:
                text = text or as_text(row)
                if on_bad_rows == "error":
                    raise self.error(error, number, text, any_good=counts["rows"] > 0) from error
                tally.left_out["bad row"] += 1
                text = shortened(text.encode("utf-8", errors="backslashreplace").decode("utf-8"))
                tally.bad_rows.append({"file": str(self.path), "line": number, "text": text, "reason": str(error)})
                continue
            counts["rows"] += bool(pairs)
            for pair in pairs:
                yield number, pair

    def error(self, error: RowError, number: int, text: str, any_good: bool) -> InputError:
        """The error for a bad row: its place, text and remedy; `any_good` for a file that also has good rows."""
        remedy = error.remedy
        if number == 1 and isinstance(self.rows, PairRows) and self.format not in KEYED:
            remedy += " If line 1 is a header, pass --header, or name columns: --text_columns A B --label_column C."
        elif self.format == "xlsx" and error.got is None:
            pass  # leaving merged cells out can drop all rows of a label
        elif any_good or isinstance(self.rows, QueryRows):
            remedy += " Or leave such rows out, counted and listed, with --on_bad_rows skip."
        readable = re.search("[\ud800-\udfff]", text) is None  # no bytes of another encoding
        shown = f"\n  {shortened(text)!r}" if readable else ""
        return InputError(f"{self.place(number)}: {error}.{shown}\n{remedy}")


def shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
