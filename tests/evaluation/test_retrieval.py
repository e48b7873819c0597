"""Retrieval metrics by hand; tests/training/test_retrieval_sets.py compares with sentence-transformers."""

import math
from itertools import permutations, product

import numpy as np
import pytest

from cosent.evaluation.retrieval import (
    METRICS,
    Relevance,
    mean_intervals,
    retrieval_metrics,
    sampled,
    tied_metrics,
)


def test_by_hand():
    """Fails if a metric is not the one of its formula: two queries, one with graded gains, one that finds nothing."""
    relevance = Relevance(np.array([0, 1]), np.array([0, 3, 4]), np.array([5, 7, 9, 5]), np.array([1.0, 3.0, 2.0, 1.0]))
    metrics = tied_metrics(np.array([2, 1, 50, 6]), np.ones(4, int), relevance, 6)  # ranks 3, 2; not found; not found
    assert set(metrics) == set(METRICS)
    assert metrics["recall_at_1"].tolist() == [0, 0]
    assert metrics["recall_at_5"].tolist() == metrics["recall_at_10"].tolist() == [2 / 3, 0]
    assert metrics["mrr_at_10"].tolist() == [1 / 2, 0]
    gained = 3 / math.log2(3) + 1 / math.log2(4)
    best = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert metrics["ndcg_at_10"] == pytest.approx([gained / best, 0])
    assert metrics["map"] == pytest.approx([(1 / 2 + 2 / 3) / 3, 0])


def naive(order: list[int], gains: dict[int, float], depth: int) -> dict[str, float]:
    """The metrics of one query from its ranked items, by their textbook definitions."""
    hits = [rank for rank, item in enumerate(order[:depth], start=1) if item in gains]
    values = {f"recall_at_{k}": sum(rank <= k for rank in hits) / len(gains) for k in (1, 5, 10)}
    values["mrr_at_10"] = 1 / hits[0] if hits and hits[0] <= 10 else 0.0
    dcg = sum(gains[order[rank - 1]] / math.log2(rank + 1) for rank in hits if rank <= 10)
    best = sum(g / math.log2(r + 1) for r, g in enumerate(sorted(gains.values(), reverse=True)[:10], start=1))
    values["ndcg_at_10"] = dcg / best
    values["map"] = sum(place / rank for place, rank in enumerate(hits, start=1)) / min(len(gains), depth)
    return values


@pytest.mark.parametrize("copies", [(7,), (1, 3, 2, 1), (2, 2, 3), (1, 1, 1, 1, 1, 1, 1)])
def test_equal_scores_count_by_their_expectation(copies, monkeypatch):
    """Fails if the order of the file decides about tied sentences: every metric is its mean over all of their orders.

    A pool of a query and seven documents, some with equal vectors, of which three are relevant.
    """
    monkeypatch.setattr("cosent.evaluation.retrieval.DEPTH", 6)
    rng = np.random.default_rng(sum(copies) * len(copies))
    angles = np.repeat(np.linspace(0.1, 1.4, len(copies)), copies)
    vectors = np.array([[1.0, 0.0], *[[math.cos(angle), math.sin(angle)] for angle in angles]], dtype=np.float32)
    gains = dict(zip(rng.permutation(np.arange(1, 8))[:3].tolist(), [1.0, 3.0, 2.0], strict=True))
    items = np.array(sorted(gains))
    relevance = Relevance(np.array([0]), np.array([0, 3]), items, np.array([gains[item] for item in items]))
    groups = np.split(np.arange(1, 8), np.cumsum(copies)[:-1])
    orders = [sum(parts, ()) for parts in product(*(permutations(group.tolist()) for group in groups))]
    every = [naive(list(order), gains, 6) for order in orders]
    metrics = retrieval_metrics(vectors, vectors, relevance)
    for name in METRICS:
        assert metrics[name][0] == pytest.approx(np.mean([values[name] for values in every]), rel=1e-12), name


@pytest.mark.parametrize("offset", [0, 45])
def test_a_dead_model_is_at_the_level_of_chance(offset):
    """Fails if a model with one vector for all texts finds all that stands first in a file."""
    vectors = np.repeat(np.random.default_rng(0).standard_normal((1, 33)).astype(np.float32), 51, axis=0)
    relevance = Relevance(np.array([50, 50]), np.array([0, 1, 6]), np.r_[offset, offset : offset + 5], np.ones(6))
    metrics = retrieval_metrics(vectors, vectors, relevance)
    assert metrics["recall_at_10"] == pytest.approx([10 / 50, 10 / 50]) and metrics["recall_at_1"][0] == 1 / 50
    assert metrics["mrr_at_10"][0] == pytest.approx(sum(1 / rank for rank in range(1, 11)) / 50)


def test_vectors_that_are_not_finite_are_not_found():
    """Fails if NaN is above every number, or equal to itself."""
    vectors = np.eye(4, dtype=np.float32)
    vectors[2] = np.nan
    relevance = Relevance(np.array([0, 2]), np.array([0, 1, 2]), np.array([2, 0]), np.ones(2))
    metrics = retrieval_metrics(vectors, vectors, relevance)
    assert metrics["recall_at_1"].tolist() == [0.0, 0.0]


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
