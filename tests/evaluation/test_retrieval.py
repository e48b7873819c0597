"""Retrieval metrics: by hand, against a naive reference, and against sentence-transformers."""

import math

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from cosent.evaluation.retrieval import METRICS, Relevance, mean_intervals, retrieval_metrics, sampled


def test_by_hand():
    """Fails if a metric is not the one of its formula: two queries, one with graded gains, one that finds nothing."""
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


def test_rows_that_were_not_found():
    """Fails if row -1 of a query counts as the last item of the query before, and a metric is above 1."""
    relevance = Relevance(np.array([0, 1]), np.array([0, 1, 2]), np.array([4, 0]), np.array([1.0, 1.0]))
    metrics = retrieval_metrics(np.array([[2, 3, 1], [-1, -1, -1]]), relevance)
    assert {name: values.tolist() for name, values in metrics.items()} == dict.fromkeys(METRICS, [0, 0])


def random_task(queries: int, pool: int, seed: int) -> Relevance:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 15, queries)
    items = np.concatenate([rng.permutation(np.arange(queries, pool))[:count] for count in counts])
    return Relevance(np.arange(queries), np.r_[0, counts.cumsum()], items, np.ones(len(items)))


def test_equal_to_sentence_transformers():
    """Fails if a figure cannot be compared with those of sentence-transformers on the same queries."""
    relevance = random_task(queries=40, pool=150, seed=0)
    vectors = np.random.default_rng(1).standard_normal((150, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = np.argsort(-vectors[:40] @ vectors[40:].T, axis=1, kind="stable")[:, :100] + 40
    ours = {name: values.mean() for name, values in retrieval_metrics(found, relevance).items()}

    relevant = {
        str(query): set(map(str, relevance.items[relevance.starts[query] : relevance.starts[query + 1]]))
        for query in range(40)
    }
    evaluator = InformationRetrievalEvaluator(
        queries={str(row): str(row) for row in range(40)},
        corpus={str(row): str(row) for row in range(40, 150)},
        relevant_docs=relevant,
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 5, 10],
    )
    theirs = evaluator.compute_metrics(
        [
            [{"corpus_id": str(row), "score": 1.0 - rank / 100} for rank, row in enumerate(rows)]
            for rows in found.tolist()
        ]
    )
    for name, value in ours.items():
        kind, _, k = name.partition("_at_")
        their_value = theirs[f"{kind}@k"][int(k or 100)]
        assert value == pytest.approx(float(np.mean(their_value)), abs=1e-12), name
    assert 0.05 < ours["recall_at_10"] < 0.95


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
