"""The first table of README."""

import numpy as np

from lab.benchmarks.front import QUESTIONS, found_at


def test_equal_scores_count_by_their_expectation():
    """If it fails, a model whose scores are all equal finds everything or nothing."""
    scores = np.array([[0.9, 0.1, 0.2], [0.5, 0.5, 0.5], [0.7, 0.8, 0.7]])
    assert found_at(scores, 1).tolist() == [1, 1 / 3, 0]
    assert found_at(scores, 2).tolist() == [1, 2 / 3, 0.5]


def test_every_question_is_written_twice():
    """If it fails, a query has no answer, or is its own."""
    rows = [line.split("\t") for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 150 and all(len(row) == 2 for row in rows)
    assert len({text for row in rows for text in row}) == 300
