"""The first table of README."""

import numpy as np

from cosent.evaluation.retrieval import Relevance, tied_metrics, tied_ranks
from lab.benchmarks.front import QUESTIONS


def test_a_query_outside_the_pool_finds_its_own():
    """If it fails, equal scores decide by the order of the file, or a question is left out of the search."""
    relevance = Relevance(np.full(3, -1), np.arange(4), np.arange(3), np.ones(3))
    documents = np.array([[1, 0], [1, 0], [0, 1]], dtype=np.float32)
    queries = np.array([[1, 0], [0, 1], [1, 1]], dtype=np.float32)
    metrics = tied_metrics(*tied_ranks(queries, documents, relevance), relevance, depth=3)
    assert metrics["recall_at_1"].tolist() == [1 / 2, 0, 1 / 3]


def test_every_question_is_written_twice():
    """If it fails, a query has no answer, or is its own."""
    rows = [line.split("\t") for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 150 and all(len(row) == 2 for row in rows)
    assert len({text for row in rows for text in row}) == 300
