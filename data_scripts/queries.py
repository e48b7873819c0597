"""Rows of a query with the texts that belong to it and those that do not, as retrieval models are trained on.

    {"query": "怎么还款", "pos": ["如何还款"], "neg": ["怎么借款"], "pos_scores": [0.98], "neg_scores": [0.31]}
    {"anchor": "怎么还款", "positive": "如何还款", "negative": "怎么借款"}

Each text becomes a pair with the query. Its label is 1 for a positive and 0 for a negative, or its score.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cosent.data.files import Record, RowError
from data_scripts.checks import LabelRange, check_label, check_text
from data_scripts.readers import LABEL_NAMES, Pair, check_width

QUERY_NAMES = ("query", "anchor")
SIDES = {  # by the key of its scores: the columns of its texts, and their label without scores
    "pos_scores": (re.compile(r"(pos|positive)(_\d+)?"), 1.0),
    "neg_scores": (re.compile(r"(neg|negative)(_\d+)?"), 0.0),
}
POSITIVE, NEGATIVE = (columns for columns, _ in SIDES.values())
PROMPT = "prompt"
MOST_PROMPTS = 100  # different ones that are told apart


def query_column(names: Iterable[str]) -> str | None:
    """The column of the query, or None if rows with these columns do not have this shape."""
    names = list(names)
    found = [name for name in QUERY_NAMES if name in names]
    return found[0] if found and any(map(POSITIVE.fullmatch, names)) else None


def looks_like_scored_pairs(names: Iterable[str]) -> bool:
    """Whether a row has a text and a label, and no negatives: a positive, or a pair with a score?"""
    names = list(names)
    return not any(map(NEGATIVE.fullmatch, names)) and bool(set(LABEL_NAMES) & set(names))


@dataclass(frozen=True)
class QueryLayout:
    """Shape of a file with a query and its texts in each row.

    Args:
        query: column of the query.
        lists: whether each column of texts holds a list of them.
        scored: whether the labels are the scores in `pos_scores` and `neg_scores`.
        add_prompt: whether the prompt of a row is written before its query.
    """

    format: str
    header: bool
    query: str
    lists: bool = False
    scored: bool = False
    add_prompt: bool = False

    def parser(
        self, names: list[str], path: Path, labels: LabelRange, words: Counter
    ) -> Callable[[list | dict], list[Pair]]:
        return lambda fields: self.pairs(by_name(fields, names), labels)

    def group(self, pair: Pair) -> str:
        return pair[0]

    def pairs(self, row: dict, labels: LabelRange) -> list[Pair]:
        """The checked pairs of a row: the query with each positive, then with each negative.

        Raises:
            RowError: a field is missing or of another type, a text is empty, or texts and scores do not match.
        """
        if self.query not in row:
            raise RowError(f"the key {self.query}", f"a row with the keys {', '.join(row)}")
        query, prompt = check_text(row[self.query], self.query), prompt_of(row)
        if self.add_prompt:
            query = prompt + query
        found = []
        for scores_name, (columns, label) in SIDES.items():
            texts = self._texts(row, columns)
            grades = self._scores(row, scores_name, texts, labels) if self.scored else [label] * len(texts)
            found += [(query, text, grade) for text, grade in zip(texts.values(), grades, strict=True)]
        if not found:
            raise RowError("a text in pos or neg", f"none in {', '.join(row)}")
        return found

    def _texts(self, row: dict, columns: re.Pattern) -> dict[str, str]:
        """Texts by their place, e.g. `neg[2]` or `negative_3`; a column without a value (null) holds none."""
        texts = {}
        for name, value in row.items():
            if value is None or not columns.fullmatch(name):
                continue
            if isinstance(value, list) != self.lists:
                expected = f"a list of texts in {name}" if self.lists else f"a text in {name}, as in the first row"
                raise RowError(expected, f"{value!r}")
            places = {f"{name}[{place}]": text for place, text in enumerate(value)} if self.lists else {name: value}
            texts |= {place: check_text(text, place) for place, text in places.items()}
        return texts

    def _scores(self, row: dict, name: str, texts: dict[str, str], labels: LabelRange) -> list[float]:
        scores = row.get(name)
        if scores is None and not texts:
            return []
        if not isinstance(scores, list) or len(scores) != len(texts):
            got = f"{len(scores)} scores" if isinstance(scores, list) else f"{scores!r}"
            raise RowError(f"a list of {len(texts)} scores in {name}, one for each text", got)
        return [check_label(score, labels, f"a score in {name}[{place}]") for place, score in enumerate(scores)]


@dataclass
class Fields:
    """What the rows of files hold besides the query and its texts.

    Args:
        scored: rows with `pos_scores` or `neg_scores`.
        prompts: rows by prompt; those without one have an empty one.
        unread: columns that no pair is made of.
    """

    rows: int = 0
    scored: int = 0
    prompts: Counter = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)

    def count(self, records: Iterable[Record], shape: QueryLayout) -> None:
        """Adds the rows of a file; bad rows are left out here, and told when they are read."""
        names: list[str] = []
        for _, _, fields in records:
            if isinstance(fields, RowError) or not fields:
                continue
            if shape.header and not names:
                names = [str(field).strip() for field in fields]
                continue
            try:
                row = by_name(fields, names)
                prompt = prompt_of(row)
            except RowError:
                continue
            self.rows += 1
            self.scored += any(row.get(name) is not None for name in SIDES)
            self.prompts[prompt if prompt in self.prompts or len(self.prompts) < MOST_PROMPTS else "..."] += 1
            self.unread |= {name for name in row if not is_read(name, shape.query)}


def is_read(name: str, query: str) -> bool:
    return name in (query, PROMPT, *SIDES) or any(columns.fullmatch(name) for columns in (POSITIVE, NEGATIVE))


def by_name(fields: list | dict, names: list[str]) -> dict:
    """The fields of a row by column.

    Raises:
        RowError: more or fewer fields than columns.
    """
    check_width(fields, len(names))
    return fields if isinstance(fields, dict) else dict(zip(names, fields, strict=True))


def prompt_of(row: dict) -> str:
    """The prompt of a row, empty if it has none.

    Raises:
        RowError: not text.
    """
    prompt = row.get(PROMPT)
    if prompt is not None and not isinstance(prompt, str):
        raise RowError(f"text in {PROMPT}", f"{prompt!r}")
    return prompt or ""
