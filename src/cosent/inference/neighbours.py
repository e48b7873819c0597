"""Exact nearest neighbours by dot product, which is the cosine for vectors of length 1.

Vectors are read in blocks, so that they may be a memory map larger than memory. Nearly all scores of a block are only
compared with the worst neighbour found so far, and dropped: the time goes into the matrix product.
"""

from collections.abc import Iterator

import numpy as np
import torch

from cosent.errors import InputError

QUERIES, ROWS = 512, 4096  # of a block of scores: 8 MB, which stay in a processor's cache
LARGEST = 32768  # rows of a block for few queries


@torch.inference_mode()
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
        smaller row comes first.

    Raises:
        InputError: widths that differ, or `k` greater than the number of rows to choose from.
    """
    check(queries, vectors, k, excluded=exclude is not None)
    parts = [slice(start, start + QUERIES) for start in range(0, len(queries), QUERIES)]
    found = [nearest_of_part(queries[part], vectors, k, None if exclude is None else exclude[part]) for part in parts]
    if not found:
        return np.empty((0, k), np.int64), np.empty((0, k), np.float32)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([scores for _, scores in found])


def nearest_of_part(
    queries: np.ndarray, vectors: np.ndarray, k: int, exclude: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """As `nearest`, for at most `QUERIES` queries."""
    transposed = torch.from_numpy(np.ascontiguousarray(queries.T))  # (width, queries)
    rows = torch.full((len(queries), k), -1)
    scores = torch.full((len(queries), k), -torch.inf)
    for start, block in blocks(vectors, min(LARGEST, ROWS * QUERIES // len(queries))):
        products = block @ transposed  # (block, queries)
        if exclude is not None:
            mine = torch.from_numpy(exclude) - start
            inside = (mine >= 0) & (mine < len(block))
            products[mine[inside], inside.nonzero()[:, 0]] = -torch.inf
        if start == 0 and len(block) > k:  # all would be above -inf, but only the best of the block can stay
            row, query = entries(products >= products.topk(k, dim=0).values[-1])
        else:
            row, query = entries(products > scores[:, -1])
        if len(row):
            rows, scores = merge(rows, scores, query, row + start, products[row, query])
    return rows.numpy(), scores.numpy()


def merge(
    rows: torch.Tensor, scores: torch.Tensor, query: torch.Tensor, new_rows: torch.Tensor, new_scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges new candidates into the best `k` of each query.

    Args:
        rows, scores (`torch.Tensor` of shape `(queries, k)`): the best so far, best first.
        query, new_rows, new_scores (`torch.Tensor` of shape `(candidates,)`): sorted by row; all rows are greater than
            those seen before.
    """
    query, order = query.sort(stable=True)
    new_rows, new_scores = new_rows[order], new_scores[order]
    count = torch.bincount(query, minlength=len(rows))
    changed = count.nonzero()[:, 0]
    place = rows.shape[1] + torch.arange(len(query)) - (count.cumsum(0) - count)[query]  # after the k old ones
    line = (count > 0).cumsum(0)[query] - 1
    width = rows.shape[1] + int(count.max())
    all_scores = torch.full((len(changed), width), -torch.inf)
    all_rows = torch.full((len(changed), width), -1)
    for filled, old, new in ((all_scores, scores, new_scores), (all_rows, rows, new_rows)):
        filled[:, : rows.shape[1]] = old[changed]
        filled[line, place] = new
    order = all_scores.sort(dim=1, descending=True, stable=True).indices[:, : rows.shape[1]]
    rows[changed], scores[changed] = all_rows.gather(1, order), all_scores.gather(1, order)
    return rows, scores


@torch.inference_mode()
def pairs_above(vectors: np.ndarray, threshold: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields all pairs of rows with a dot product of at least `threshold`, each once, in blocks.

    Args:
        vectors: float32 of shape `(rows, width)`, an array or a memory map.

    Yields:
        First and second row, int64, with first < second, and scores, float32, each of shape `(pairs,)`.
    """
    for start in range(0, len(vectors), QUERIES):
        transposed = torch.from_numpy(np.ascontiguousarray(vectors[start : start + QUERIES].T))  # (width, queries)
        for offset, block in blocks(vectors[start:], ROWS):
            products = block @ transposed  # (block, queries)
            second, first = entries(products >= threshold)
            later = second + offset > first
            first, second = first[later], second[later]
            if len(first):
                values = products[second, first]
                yield (first + start).numpy(), (second + offset + start).numpy(), values.numpy()


def entries(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of the true entries of a matrix, sorted by row; several times faster than `nonzero`."""
    flat = torch.from_numpy(np.flatnonzero(mask.numpy()))
    return flat // mask.shape[1], flat % mask.shape[1]


def blocks(vectors: np.ndarray, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields blocks of an array with the number of their first row; copies only what PyTorch cannot share."""
    for start in range(0, len(vectors), rows):
        yield start, torch.from_numpy(np.require(vectors[start : start + rows], requirements=["C", "W"]))


def check(queries: np.ndarray, vectors: np.ndarray, k: int, excluded: bool) -> None:
    if queries.ndim != 2 or vectors.ndim != 2 or queries.shape[1] != vectors.shape[1]:
        raise InputError(
            f"Expected queries and vectors of equal width, got shapes {queries.shape} and {vectors.shape}. Encode both "
            "with the same model."
        )
    available = len(vectors) - excluded
    if not 1 <= k <= available:
        raise InputError(f"Expected 1 to {available} neighbours, as many as there are, got {k}. Lower it.")
