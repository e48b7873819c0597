"""Answers of a search to a user's own queries: right, wrong and missing ones, over thresholds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cosent.data.files import open_table
from cosent.data.formats import FileOptions
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder, TextModel
from cosent.models.decision import rule_for
from cosent.search.index import Index

QUERY_COLUMNS = (("query", "查询", "问题"), ("answer", "答案"))
RETRIEVER = "similar"  # finds the sentences that a cross-encoder puts in order
STEPS = 10  # of thresholds


def read_queries(path: str, answers: set[str], text: str, encoding: str = "utf-8") -> list[tuple[str, str]]:
    """The queries of a file, each with its answer, one of `answers` of the file `text`, or "" where it has none."""
    table = open_table(path, None, QUERY_COLUMNS, "", "--queries", FileOptions(encoding=encoding))
    query, answer = table.sentences
    queries = []
    for where, row in replace(table, sentences=(query,)).placed([query, answer]):
        value = as_value(row[answer])
        if value and value not in answers:
            raise InputError(f"{where}: no row of {text} has the answer {value!r}. Correct or empty it.")
        queries.append((row[query].strip(), value))
    return queries


def values_of(rows: Iterable[tuple[str, dict]]) -> list[set[str]]:
    """The sentence and all values of each row, as text."""
    return [{sentence, *map(as_value, columns.values())} for sentence, columns in rows]


def as_value(cell: object) -> str:
    """A cell as text; "" if it is empty."""
    return "" if cell is None else str(cell).strip()


@dataclass(frozen=True)
class Answers:
    """The best sentence for each query, and whether it is right: arrays of shape `(queries,)`.

    Args:
        flag: flag of `cosent search` that takes a threshold for `values`.
        values: probability of the best sentence; without a decision rule, its score.
        right: whether it is the answer.
        answerable: whether the query has an answer.
    """

    flag: str
    values: np.ndarray
    right: np.ndarray
    answerable: np.ndarray

    def over_thresholds(self) -> list[dict[str, Any]]:
        """Numbers of queries at each threshold, the first of which lets every answer pass.

        With an answer: `right`, `wrong` and `nothing`; without one: `answered`.
        """
        levels = np.arange(1, STEPS) / STEPS
        if self.flag != "min_probability":
            levels = np.unique(np.quantile(self.values, levels).round(2))
        rows = []
        for level in (None, *levels.tolist()):
            passed = np.full(len(self.values), True) if level is None else self.values >= level
            parts = {
                "right": passed & self.right,
                "wrong": passed & ~self.right & self.answerable,
                "nothing": ~passed & self.answerable,
                "answered": passed & ~self.answerable,
            }
            rows.append({"threshold": level} | {name: int(part.sum()) for name, part in parts.items()})
        return rows

    def table(self) -> list[str]:
        """Lines of `over_thresholds`."""
        lines = [f"{'':24}{'right':>7}{'wrong':>7}{'nothing':>9}{'answered without an answer':>28}"]
        for row in self.over_thresholds():
            name = "no threshold" if row["threshold"] is None else f"--{self.flag} {row['threshold']:g}"
            lines.append(f"  {name:<22}{row['right']:7}{row['wrong']:7}{row['nothing']:9}{row['answered']:28}")
        return lines


def answers_of(
    model: TextModel,
    name: str,
    rows: Sequence[tuple[str, dict]],
    queries: Sequence[tuple[str, str]],
    prompt: str | None = None,
    corpus: str | None = None,
) -> tuple[Answers, str]:
    """The answers of a model, and why they have no probability; a cross-encoder orders the nearest of `RETRIEVER`.

    Args:
        name: the folder of the model.
        rows: sentences, each with the columns of its row.
        queries: each with its answer.
        prompt: in front of the queries; default: the model's.
        corpus: whose decision rule to use.
    """
    encoder = model
    if not isinstance(encoder, SentenceEncoder):
        encoder = SentenceEncoder.from_pretrained(RETRIEVER, device=model.device).eval()
    index = Index.of([sentence for sentence, _ in rows], encoder)
    reranker, prompt = (None, prompt) if encoder is model else (model, None)
    rule, reason = rule_for(name, index.prompts(prompt, reranker), corpus)
    hits = [ranked[0] for ranked in index.search([query for query, _ in queries], 1, prompt, reranker)]
    scores, values = np.array([hit.score for hit in hits]), values_of(rows)
    answerable = np.array([bool(answer) for _, answer in queries])
    right = np.array([answer in values[hit.row] for hit, (_, answer) in zip(hits, queries, strict=True)])
    if rule is None or rule.calibration is None:
        return Answers("min_score", scores, right & answerable, answerable), reason
    return Answers("min_probability", rule.probabilities(scores), right & answerable, answerable), ""
