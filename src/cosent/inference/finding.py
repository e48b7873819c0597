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
    depth = min(DEPTH, len(documents) - 1)
    rows, _ = nearest(queries[relevance.queries], documents, depth, exclude=relevance.queries)
    return retrieval_metrics(rows, relevance)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length 1, float32; zeros stay zeros."""
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)).astype(np.float32)
