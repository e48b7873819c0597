"""Retrieval metrics by hand; tests/training/test_retrieval_sets.py compares with sentence-transformers."""

import math

import numpy as np
import pytest

from cosent.evaluation.retrieval import METRICS, Relevance, mean_intervals, retrieval_metrics, sampled


def test_by_hand():
    """Fails if a metric is not the one of its formula: two queries, one with graded gains, one that finds nothing; or
    if row -1 of a query counts as the last item of the query before."""
    relevance = Relevance(np.array([0, 1]), np.array([0, 3, 4]), np.array([5, 7, 9, 5]), np.array([1.0, 3.0, 2.0, 1.0]))
    rows = np.array([[8, 7, 5, 6, 4, 3], [9, 7, 8, 6, 4, 3]])
    metrics = retrieval_metrics(rows, relevance)
    assert set(metrics) == set(METRICS)
    assert metrics["recall_at_1"].tolist() == [0, 0]
    assert metrics["recall_at_5"].tolist() == metrics["recall_at_10"].tolist() == [2 / 3, 0]
    assert metrics["mrr_at_10"].tolist() == [1 / 2, 0]
    gained = 3 / math.log2(3) + 1 / math.log2(4)
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert metrics["ndcg_at_10"] == pytest.approx([gained / best, 0])
    assert metrics["map"] == pytest.approx([(1 / 2 + 2 / 3) / 3, 0])
    relevance = Relevance(np.array([0, 1]), np.array([0, 1, 2]), np.array([4, 0]), np.array([1.0, 1.0]))
    metrics = retrieval_metrics(np.array([[2, 3, 1], [-1, -1, -1]]), relevance)
    assert {name: values.tolist() for name, values in metrics.items()} == dict.fromkeys(METRICS, [0, 0])


def random_task(queries: int, pool: int, seed: int) -> Relevance:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 15, queries)
    items = np.concatenate([rng.permutation(np.arange(queries, pool))[:count] for count in counts])
    return Relevance(np.arange(queries), np.r_[0, counts.cumsum()], items, np.ones(len(items)))


def test_interval_holds_the_mean():
    """Fails if the interval is that of another statistic: the mean of 400 fair coins is 0.5 give or take 0.05."""
    found = mean_intervals({"coins": np.tile([0.0, 1.0], 200), "certain": np.ones(400)})
    low, high = found["coins"]
    assert 0.44 < low < 0.46 < 0.54 < high < 0.56
    assert found["certain"] == (1, 1)


def test_sampled_queries_keep_their_items():
    """Fails if a query of a large split is judged by the items of another."""
    every = random_task(40, 150, 0)
    some = sampled(every, 15)
    assert len(some) == 15 < len(every) and sampled(every, 40) is every
    for place, query in enumerate(some.queries):
        found, expected = (task.items[slice(*task.starts[i : i + 2])] for task, i in ((some, place), (every, query)))
        assert found.tolist() == expected.tolist()
