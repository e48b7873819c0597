"""Retrieval metrics of vectors: exact search among the sentences of a pool."""

import numpy as np

from cosent.evaluation.retrieval import DEPTH, Relevance, retrieval_metrics
from cosent.inference.neighbours import nearest


def found_by_vectors(queries: np.ndarray, documents: np.ndarray, relevance: Relevance) -> dict[str, np.ndarray]:
    """The `METRICS` of each query, by name, each of shape `(len(relevance),)`; a sentence never finds itself.

    Args:
        queries, documents: float32 of shape `(pool, width)` and of length 1: every sentence of the pool as a query and
            as something to find, which differ if the prompts do.
    """
    return retrieval_metrics(nearest_to_queries(queries, documents, relevance), relevance)


def nearest_to_queries(queries: np.ndarray, documents: np.ndarray, relevance: Relevance) -> np.ndarray:
    """The nearest sentences of each query, best first, int64 of shape `(len(relevance), depth)`; none finds itself.

    Args:
        queries, documents: see `found_by_vectors`.
    """
    depth = min(DEPTH, len(documents) - 1)
    return nearest(queries[relevance.queries], documents, depth, exclude=relevance.queries)[0]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1, float32; zeros stay zeros."""
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)).astype(np.float32)
