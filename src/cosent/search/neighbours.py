"""Exact nearest neighbours by dot product, which is the cosine for vectors of length 1.

Vectors are read in blocks, so that they may be a memory map larger than memory. Scores of a block are compared with the
worst neighbour found so far, which drops nearly all of them: the time goes into the matrix product, or, for few
queries, into reading the vectors. The product is NumPy's, whose OpenBLAS is faster than PyTorch's MKL on processors of
AMD ([docs/search.md](../docs/search.md)).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from cosent.errors import InputError

QUERIES, ROWS = 1024, 2048  # of a block of scores: 8 MB, small enough for the CPU cache while they are scanned
LARGEST = 524288  # rows of a block for few queries


def nearest(
    queries: np.ndarray, vectors: np.ndarray, k: int, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `k` vectors with the highest dot product for each query.

    Args:
        queries: float32 of shape `(queries, width)`.
        vectors: float32 of shape `(rows, width)`, an array or a memory map.
        k: neighbours per query, at least 1.
        exclude: int64 of shape `(queries,)`, a row of `vectors` that is no neighbour of each query, usually the query
            itself; -1 for none.

    Returns:
        Rows of `vectors`, int64, and scores, float32, each of shape `(queries, k)`, best first. Among equal scores the
        smaller row comes first. Row -1 with score -inf where fewer than `k` dot products are finite.
    """
    if queries.ndim != 2 or queries.shape[1] != vectors.shape[1]:
        raise InputError(f"Queries and vectors differ in width: {queries.shape} and {vectors.shape}. Use one model.")
    available = len(vectors) - (exclude is not None)
    if not 1 <= k <= available:
        raise InputError(f"Expected 1 to {available} neighbours, got {k}.")
    rows, scores = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
    for start in range(0, len(queries), QUERIES):
        part = slice(start, start + QUERIES)
        search_part(queries[part], vectors, rows[part], scores[part], None if exclude is None else exclude[part])
    return rows, scores


def search_part(
    queries: np.ndarray, vectors: np.ndarray, rows: np.ndarray, scores: np.ndarray, exclude: np.ndarray | None
) -> None:
    """As `nearest`, for at most `QUERIES` queries, into the views `rows` and `scores`."""
    k, length = rows.shape[1], min(LARGEST, ROWS * QUERIES // len(queries))
    memory = np.empty((len(queries), length), np.float32)
    for start, block in blocks(vectors, length):
        products = np.matmul(queries, block.T, out=memory[:, : len(block)])
        if exclude is not None:
            column = exclude - start
            inside = np.flatnonzero((column >= 0) & (column < len(block)))
            products[inside, column[inside]] = -np.inf
        bounds = scores[:, -1]
        if start == 0 and len(block) > k:  # all would be above -inf, but only the best k of any of them can stay
            first_rows = products[:, : max(k, ROWS)]
            finite = np.where(np.isfinite(first_rows), first_rows, -np.inf)
            bounds = np.nextafter(np.partition(finite, -k, axis=1)[:, -k], np.float32(-np.inf))
        query, row, values = between(products, bounds[:, None])
        if len(row):
            merge(rows, scores, query, row + start, values)


def between(products: np.ndarray, bounds: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, row and value of the products `(queries, rows)` above their bound and below inf, sorted by query and row.

    NaN and inf, of vectors that are not finite, are no neighbours.
    """
    query, row = np.divmod(np.flatnonzero(products > bounds), products.shape[1])  # faster than nonzero of two axes
    values = products[query, row]
    finite = values < np.inf
    return query[finite], row[finite], values[finite]


def merge(
    rows: np.ndarray, scores: np.ndarray, query: np.ndarray, new_rows: np.ndarray, new_scores: np.ndarray
) -> None:
    """Merges new candidates into `rows` and `scores` `(queries, k)`, the best so far, in place.

    Candidates `(candidates,)` are sorted by query and then by row; all rows are greater than those seen before.
    """
    k, count = rows.shape[1], np.bincount(query, minlength=len(rows))
    changed = np.flatnonzero(count)
    place = k + np.arange(len(query)) - (count.cumsum() - count)[query]  # after the k old ones
    line = ((count > 0).cumsum() - 1)[query]
    shape = len(changed), k + int(count.max())
    all_rows, all_scores = np.full(shape, -1), np.full(shape, -np.inf, np.float32)
    for filled, old, new in ((all_rows, rows, new_rows), (all_scores, scores, new_scores)):
        filled[:, :k] = old[changed]
        filled[line, place] = new
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :k]
    rows[changed], scores[changed] = (np.take_along_axis(of, order, axis=1) for of in (all_rows, all_scores))


def blocks(vectors: np.ndarray, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of vectors, each with the number of its first row."""
    for start in range(0, len(vectors), rows):
        yield start, np.asarray(vectors[start : start + rows])
