"""Answers of a search to a user's own queries: right, wrong and missing ones, over thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cosent.data.files import AS_USUAL, open_table, read_rows
from cosent.data.formats import FileOptions
from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder
from cosent.models.bi_encoder import SentenceEncoder, TextModel
from cosent.models.decision import rule_for
from cosent.search.index import Index

QUERY_COLUMNS = (("query", "查询", "问题"), ("answer", "答案"))
RETRIEVER = "similar"  # finds the sentences that a cross-encoder puts in order
STEPS = 10  # of thresholds


@dataclass(frozen=True)
class Sheet:
    """The sentences of a file, and all values of the row of each, as text."""

    path: str
    sentences: list[str]
    values: list[set[str]]

    @classmethod
    def read(cls, path: str, text_column: str | None, options: FileOptions = AS_USUAL) -> "Sheet":
        rows = list(read_rows([path], text_column, options))
        values = [{sentence, *map(as_value, columns.values())} for sentence, columns in rows]
        return cls(path, [sentence for sentence, _ in rows], values)

    def read_queries(self, path: str, encoding: str = "utf-8") -> list[tuple[str, str]]:
        """The queries of a file, each with its answer: a value of the sheet, or "" where the sheet has none."""
        table = open_table(path, None, QUERY_COLUMNS, "", "--queries", FileOptions(encoding=encoding))
        query, answer = table.sentences
        queries, answers = [], set().union(*self.values)
        for where, row in replace(table, sentences=(query,)).placed([query, answer]):
            text = as_value(row[answer])
            if text and text not in answers:
                raise InputError(f"{where}: no row of {self.path} has the answer {text!r}. Correct or empty it.")
            queries.append((row[query].strip(), text))
        return queries


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
    sheet: Sheet,
    queries: Sequence[tuple[str, str]],
    prompt: str | None = None,
    corpus: str | None = None,
) -> tuple[Answers, str]:
    """The answers of a model, and why they have no probability; a cross-encoder orders the nearest of `RETRIEVER`.

    Args:
        name: the folder of the model.
        prompt: in front of the queries; default: the model's.
        corpus: whose decision rule to use.
    """
    encoder = model if isinstance(model, SentenceEncoder) else load_bi_encoder(RETRIEVER).to(model.device).eval()
    index = Index.of(sheet.sentences, encoder)
    reranker, prompt = (None, prompt) if encoder is model else (model, None)
    rule, reason = rule_for(name, index.prompts(prompt, reranker), corpus)
    texts = [query for query, _ in queries]
    hits = index.search(texts, 1, prompt, reranker)
    best = [of_query[0] for of_query in hits]
    scores = np.array([hit.score for hit in best])
    answerable = np.array([bool(answer) for _, answer in queries])
    right = np.array([answer in sheet.values[hit.row] for hit, (_, answer) in zip(best, queries, strict=True)])
    flag, values = "min_score", scores
    if rule is not None and rule.calibration is not None:
        flag, values = "min_probability", rule.probabilities(scores)
    return Answers(flag, values, right & answerable, answerable), reason
