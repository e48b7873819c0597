"""Nearest neighbours by dot product, which is the cosine for vectors of length 1: exact, or approximate by faiss.

Vectors are read in blocks, so that they may be a memory map larger than memory. Scores of a block are compared with the
worst neighbour found so far, which drops nearly all of them: the time goes into the matrix product, or, for few
queries, into reading the vectors. The product is NumPy's, whose OpenBLAS is faster than PyTorch's MKL on processors of
AMD ([docs/search.md](../docs/search.md)).
"""

import glob
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from cosent.atomic import is_intact, signed_file
from cosent.errors import InputError

logger = logging.getLogger(__name__)

QUERIES, ROWS = 1024, 2048  # of a block of scores: 8 MB, which stay in the cache until they have been looked at
LARGEST = 524288  # rows of a block for few queries

TRAINED_ON = 262144  # rows, at most, that an index of faiss which has to be trained is trained on
ROWS_ADDED = 65536  # to an index of faiss at a time
SAMPLE, RECALL_AT = 200, 10  # queries and neighbours that recall is measured with


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
            mine = exclude - start
            inside = np.flatnonzero((mine >= 0) & (mine < len(block)))
            products[inside, mine[inside]] = -np.inf
        bounds = scores[:, -1]
        if start == 0 and len(block) > k:  # all would be above -inf, but only the best k of any of them can stay
            some = products[:, : max(k, ROWS)]
            finite = np.where(np.isfinite(some), some, -np.inf)
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


def representatives(
    vectors: np.ndarray, threshold: float, kept_apart: Callable[[int, int], bool] = lambda earlier, later: False
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields the representative of each row, in blocks: the nearest one before it within the threshold, or the row.

    A row without a representative among the rows before it becomes one. So every row lies within the threshold of its
    representative, no chain links rows that differ, and of each group the first row represents it.

    Args:
        vectors: unit vectors, float32 of shape `(rows, width)`, an array or a memory map.
        threshold: least dot product.
        kept_apart: whether an earlier and a later row may not be in one group, though they are that similar.

    Yields:
        The first row of a block, and of its rows the representative, int64, and the dot product with it, float32, each
        of shape `(rows of the block,)`; 1 for a row that represents itself.
    """
    bound = np.nextafter(np.float32(threshold), np.float32(-np.inf))
    first_ones = np.empty(0, np.int64)  # rows that represent themselves, of the blocks before
    for start, block in blocks(vectors, QUERIES):
        own = np.arange(start, start + len(block))
        owner, cosine = own.copy(), np.ones(len(block), np.float32)
        parts = []
        for first in range(0, len(first_ones), ROWS):
            some = first_ones[first : first + ROWS]
            later, place, values = between(block @ vectors[some].T, bound)
            parts.append((later, some[place], values))
        later, place, values = between(np.tril(block @ block.T, -1), bound)
        earlier = place < later  # a bound below 0 lets in the zeros of `tril`
        parts.append((later[earlier], own[place[earlier]], values[earlier]))
        later, candidates, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((candidates, -values, later))
        ends = np.searchsorted(later[order], np.arange(len(block) + 1))
        for row in np.flatnonzero(np.diff(ends)):
            for at in order[ends[row] : ends[row + 1]]:
                candidate = int(candidates[at])
                is_member = candidate >= start and owner[candidate - start] != candidate
                if not is_member and not kept_apart(candidate, int(own[row])):
                    owner[row], cosine[row] = candidate, values[at]
                    break
        first_ones = np.concatenate((first_ones, own[owner == own]))
        yield start, owner, cosine


def blocks(vectors: np.ndarray, rows: int, first: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of vectors from row `first` on, each with the number of its first row."""
    for start in range(first, len(vectors), rows):
        yield start, np.asarray(vectors[start : start + rows])


class Approximate:
    """An index of faiss, whose neighbours are scored again with `vectors` themselves."""

    def __init__(self, index: Any, vectors: np.ndarray):
        self.index, self.vectors = index, vectors

    def nearest(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As `nearest` of the exact search; row -1 and score -inf where fewer than `k` neighbours were found."""
        queries = np.ascontiguousarray(queries)
        _, rows = self.index.search(queries, k)
        scores = np.stack([self.vectors[some] @ query for some, query in zip(rows, queries, strict=True)])
        scores[rows < 0] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def approximate(
    vectors: np.ndarray, factory: str, folder: Path | None, key: str = "", name: str | None = None
) -> Approximate:
    """An index of faiss, read from a folder, or built, and stored there; logs the recall of a new one.

    Args:
        vectors: unit vectors, float32 of shape `(rows, width)`.
        factory: what faiss's `index_factory` takes, and after a semicolon parameters: `IVF4096,Flat;nprobe=64`.
        folder: None keeps the index in memory.
        key: hash of all that the vectors depend on.
        name: what the vectors are called; earlier indexes of that name, with another key, are removed.
    """
    try:
        import faiss
    except ImportError as error:
        raise InputError("--faiss needs faiss. Run pip install -e '.[faiss]', or leave the flag out.") from error
    about, kind = f"faiss {factory} of {len(vectors):,} vectors", re.sub(r"\W+", "_", factory)
    file = None if folder is None else folder / f"{f'{name}.' if name else ''}{key}.{kind}.faiss"
    if file is not None and is_intact(file):
        index = faiss.read_index(str(file))
        if (index.ntotal, index.d) == vectors.shape:
            logger.info("%s, read from %s", about, file)
            return Approximate(index, vectors)
    start = time.perf_counter()
    try:
        found = Approximate(build_index(vectors, factory), vectors)
    except RuntimeError as error:  # the last line of faiss's says what it cannot parse, set or train
        raise InputError(f"--faiss {factory}: {str(error).splitlines()[-1]}. See faiss's index_factory.") from error
    seconds, share = time.perf_counter() - start, recall(found, vectors)
    logger.info("%s, built in %.0f s: recall@%d %.3f of the exact search", about, seconds, RECALL_AT, share)
    if file is not None:
        with signed_file(file) as partial:
            faiss.write_index(found.index, str(partial))
        for old in set(file.parent.glob(f"{glob.escape(name)}.*.{kind}.faiss")) - {file} if name else ():
            old.unlink(missing_ok=True)
    return found


def build_index(vectors: np.ndarray, factory: str) -> Any:
    """A new index of all vectors, trained on evenly spaced ones if it has to be."""
    import faiss

    kind, _, parameters = factory.partition(";")
    index: Any = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    faiss.ParameterSpace().set_index_parameters(index, parameters)  # type: ignore[arg-type]  # faiss types it as int
    if not index.is_trained:
        index.train(vectors[np.linspace(0, len(vectors) - 1, min(TRAINED_ON, len(vectors))).astype(np.int64)])
    with tqdm(total=len(vectors), desc=f"faiss {factory}", unit="row") as progress:
        for _, block in blocks(vectors, ROWS_ADDED):
            index.add(np.ascontiguousarray(block))
            progress.update(len(block))
    return index


def recall(found: Approximate, vectors: np.ndarray) -> float:
    """Share of the nearest neighbours of evenly spaced rows, themselves excluded, that are found; 1 of a single row."""
    rows = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    depth, queries = min(RECALL_AT, len(vectors) - 1), vectors[rows]
    if depth == 0:
        return 1.0
    exact, _ = nearest(queries, vectors, depth, rows)
    close, _ = found.nearest(queries, depth + 1)
    return float((exact[:, :, None] == close[:, None, :]).any(axis=2).mean())
