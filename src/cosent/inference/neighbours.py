"""Exact nearest neighbours by dot product, which is the cosine for vectors of length 1.

Vectors are read in blocks, so that they may be a memory map larger than memory. Nearly all scores of a block are only
compared, a group at a time, with the worst neighbour found so far, and dropped: the time goes into the matrix product,
or, for few queries, into reading the vectors. The product is NumPy's, whose OpenBLAS is faster than PyTorch's MKL on
processors of AMD ([docs/search.md](../docs/search.md)).
"""

import glob
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from cosent.errors import InputError, partial_file, write_atomically, writing
from cosent.evaluation.retrieval import DEPTH, Relevance, retrieval_metrics
from cosent.inference.vectors import VectorSet

QUERIES, ROWS = 1024, 2048  # of a block of scores: 8 MB, which stay in the cache until they have been looked at
LARGEST = 524288  # rows of a block for few queries
GROUP = 64  # scores whose highest is compared first; divides ROWS and LARGEST

Vectors = np.ndarray | VectorSet


def nearest(
    queries: np.ndarray, vectors: Vectors, k: int, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the `k` vectors with the highest dot product for each query.

    Args:
        queries: float32 of shape `(queries, width)`.
        vectors: float32 of shape `(rows, width)`, an array, a memory map or a `VectorSet`.
        k: neighbours per query, at least 1.
        exclude: int64 of shape `(queries,)`, a row of `vectors` that is no neighbour of each query, usually the query
            itself; -1 for none.

    Returns:
        Rows of `vectors`, int64, and scores, float32, each of shape `(queries, k)`, best first. Among equal scores the
        smaller row comes first. Row -1 with score -inf where fewer than `k` dot products are finite.

    Raises:
        InputError: widths that differ, or `k` greater than the number of rows to choose from.
    """
    check(queries, vectors, k, excluded=exclude is not None)
    rows, scores = np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
    for start in range(0, len(queries), QUERIES):
        part = slice(start, start + QUERIES)
        search_part(queries[part], vectors, rows[part], scores[part], None if exclude is None else exclude[part])
    return rows, scores


def search_part(
    queries: np.ndarray, vectors: Vectors, rows: np.ndarray, scores: np.ndarray, exclude: np.ndarray | None
) -> None:
    """As `nearest`, for at most `QUERIES` queries, into the views `rows` and `scores`, which hold no neighbours yet."""
    k, length = rows.shape[1], groups_of(min(LARGEST, ROWS * QUERIES // len(queries)))
    products = np.empty((len(queries), length), np.float32)
    for start, block in blocks(vectors, length):
        highest = multiply(queries, block, products)
        if exclude is not None:
            mine = exclude - start
            inside = np.flatnonzero((mine >= 0) & (mine < len(block)))
            products[inside, mine[inside]] = -np.inf
        bounds = scores[:, -1]
        if start == 0 and len(block) > k:  # all would be above -inf, but only the best of the block can stay
            bounds = np.nextafter(np.partition(products, length - k, axis=1)[:, length - k], np.float32(-np.inf))
        query, row, values = above(products, highest, bounds)
        if len(row):
            merge(rows, scores, query, row + start, values)


def multiply(queries: np.ndarray, block: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Fills `products` `(queries, length)` with dot products, and with -inf behind the last row of the block.

    NaN and inf, of a vector that is not finite, become -inf: else they would hide their group, or be found first.

    Returns:
        The highest product of each group, float32 of shape `(queries, length / GROUP)`.
    """
    np.matmul(queries, block.T, out=products[:, : len(block)])
    products[:, len(block) :] = -np.inf
    highest = highest_of_groups(products)
    if not (highest < np.inf).all():
        products[~(products < np.inf)] = -np.inf
        highest = highest_of_groups(products)
    return highest


def highest_of_groups(products: np.ndarray) -> np.ndarray:
    groups = torch.from_numpy(products.reshape(-1, GROUP))
    return groups.amax(1).numpy().reshape(len(products), -1)  # many times faster than NumPy's


def above(products: np.ndarray, highest: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The products above the bound of their query: query, row and value, sorted by query and then by row.

    Args:
        products: contiguous float32 of shape `(queries, rows)`; the number of rows is a multiple of `GROUP`.
        highest: of each group, float32 of shape `(queries, groups)`, or a number above it.
        bounds: float32 of shape `(queries,)`.
    """
    groups = products.reshape(-1, GROUP)
    some = np.flatnonzero(highest > bounds[:, None])
    query, group = np.divmod(some, highest.shape[1])
    hit, column = np.nonzero(groups[some] > bounds[query, None])
    return query[hit], group[hit] * GROUP + column, groups[some[hit], column]


def merge(
    rows: np.ndarray, scores: np.ndarray, query: np.ndarray, new_rows: np.ndarray, new_scores: np.ndarray
) -> None:
    """Merges new candidates into the best `k` of each query.

    Args:
        rows, scores: the best so far, of shape `(queries, k)`, best first; changed in place.
        query, new_rows, new_scores: the candidates, of shape `(candidates,)`, sorted by query and then by row; all rows
            are greater than those seen before.
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


def pairs_above(vectors: Vectors, threshold: float) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields all pairs of rows with a dot product of at least `threshold`, each once, in blocks.

    Args:
        vectors: float32 of shape `(rows, width)`, an array, a memory map or a `VectorSet`.

    Yields:
        First and second row, int64, with first < second, and scores, float32, each of shape `(pairs,)`.
    """
    bound = np.nextafter(np.float32(threshold), np.float32(-np.inf))
    length = groups_of(ROWS)
    for start in range(0, len(vectors), QUERIES):
        queries = np.ascontiguousarray(vectors[start : start + QUERIES])
        products, bounds = np.empty((len(queries), length), np.float32), np.full(len(queries), bound)
        for offset, block in blocks(vectors, length, start):
            highest = multiply(queries, block, products)
            first, second, values = above(products, highest, bounds)
            later = second + offset > first + start
            if later.any():
                yield first[later] + start, second[later] + offset, values[later]


def groups_of(rows: int) -> int:
    """The next multiple of `GROUP`."""
    return -(-rows // GROUP) * GROUP


def blocks(vectors: Vectors, rows: int, first: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Yields blocks of vectors from row `first` on, each with the number of its first row."""
    for start in range(first, len(vectors), rows):
        yield start, np.asarray(vectors[start : start + rows])


def check(queries: np.ndarray, vectors: Vectors, k: int, excluded: bool) -> None:
    if len(queries.shape) != 2 or len(vectors.shape) != 2 or queries.shape[1] != vectors.shape[1]:
        raise InputError(
            f"Expected queries and vectors of equal width, got shapes {queries.shape} and {vectors.shape}. Encode both "
            "with the same model."
        )
    available = len(vectors) - excluded
    if not 1 <= k <= available:
        raise InputError(f"Expected 1 to {available} neighbours, as many as there are, got {k}. Lower it.")


logger = logging.getLogger(__name__)

KINDS = ("auto", "hnsw", "ivf")
LARGE = 1_000_000  # rows above which `auto` takes ivf, which is built in a fraction of the time
LINKS, BREADTH, EXPLORED = (
    32,
    200,
    128,
)  # of HNSW: links of a row; candidates while it is built, and when it is searched
PER_LIST, READ_SHARE = 40, 32  # of IVF: training rows of a list; one list in so many is read
ROWS_ADDED = 65536  # added at a time
SAMPLE, RECALL_AT = 200, 10  # queries and neighbours that recall is measured with


@dataclass(frozen=True)
class Built:
    """What is known of an index of faiss: stored next to it.

    Args:
        kind: `hnsw` or `ivf`.
        recall: share of the 10 nearest neighbours of a sample of rows that the index finds.
        seconds: of building it.
    """

    kind: str
    rows: int
    recall: float
    seconds: float

    def __str__(self) -> str:
        return f"faiss {self.kind} of {self.rows:,} vectors: recall@{RECALL_AT} {self.recall:.3f} of the exact search"


class Approximate:
    """An index of faiss that answers as `nearest` does."""

    def __init__(self, index: Any, kind: str):
        self.index, self.kind = index, kind

    def nearest(self, queries: np.ndarray, k: int, exclude: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As `nearest` of the exact search; row -1 and score -inf where fewer than `k` neighbours were found."""
        faiss = import_faiss()
        wanted = k + (exclude is not None)
        if self.kind == "hnsw":
            options = faiss.SearchParametersHNSW(efSearch=max(EXPLORED, 2 * wanted))
        else:
            options = faiss.SearchParametersIVF(nprobe=max(1, self.index.nlist // READ_SHARE))
        scores, rows = self.index.search(np.ascontiguousarray(queries), wanted, params=options)
        scores[rows < 0] = -np.inf
        if exclude is None:
            return rows, scores
        order = np.argsort(rows == exclude[:, None], axis=1, kind="stable")[:, :k]  # the excluded one comes last
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def approximate(vectors: Vectors, kind: str, folder: Path, key: str, name: str | None = None) -> Approximate:
    """An index of faiss, read from a folder, or built and stored there; logs its recall.

    Args:
        vectors: unit vectors, float32 of shape `(rows, width)`.
        kind: one of `KINDS`.
        key: hash of all that the vectors depend on.
        name: what the vectors are called; earlier indexes of that name, with another key, are removed.

    Raises:
        InputError: faiss is not installed, or the index cannot be written.
    """
    faiss = import_faiss()
    kind = kind if kind != "auto" else "hnsw" if len(vectors) <= LARGE else "ivf"
    file = folder / (f"{key}.{kind}.faiss" if name is None else f"{name}.{key}.{kind}.faiss")
    about = file.with_suffix(".json")
    if file.is_file() and about.is_file():
        index = faiss.read_index(str(file))
        if (index.ntotal, index.d) == vectors.shape:
            built = Built(**json.loads(about.read_text(encoding="utf-8")))
            logger.info("%s; read from %s", built, file)
            return Approximate(index, kind)
    start = time.perf_counter()
    found = Approximate(build(faiss, vectors, kind), kind)
    seconds = time.perf_counter() - start
    built = Built(kind, len(vectors), recall(found, vectors), round(seconds, 1))
    with writing(file), partial_file(file) as partial:
        faiss.write_index(found.index, str(partial))
    write_atomically(about, json.dumps(asdict(built)) + "\n")
    if name is not None:
        for old in set(folder.glob(f"{glob.escape(name)}.*.{kind}.faiss")) - {file}:
            old.unlink(missing_ok=True)
            old.with_suffix(".json").unlink(missing_ok=True)
    logger.info("%s; built in %.0f s, stored in %s", built, seconds, file)
    return found


def build(faiss, vectors: Vectors, kind: str):
    """A new index of all vectors."""
    width = vectors.shape[1]
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(width, LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BREADTH
    else:
        lists = int(max(1, min(4 * len(vectors) ** 0.5, len(vectors) // PER_LIST)))
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        rows = np.random.default_rng(0).permutation(len(vectors))[: lists * PER_LIST]
        index.train(vectors[np.sort(rows)])
    with tqdm(total=len(vectors), desc=f"faiss {kind}", unit="row") as progress:
        for _, block in blocks(vectors, ROWS_ADDED):
            index.add(np.ascontiguousarray(block))
            progress.update(len(block))
    return index


def recall(found: Approximate, vectors: Vectors) -> float:
    """Share of the nearest neighbours of evenly spaced rows, themselves excluded, that are found; 1 of a single row."""
    rows = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    depth, queries = min(RECALL_AT, len(vectors) - 1), vectors[rows]
    if depth == 0:
        return 1.0
    exact, _ = nearest(queries, vectors, depth, rows)
    close, _ = found.nearest(queries, depth, rows)
    return round(float((exact[:, :, None] == close[:, None, :]).any(axis=2).mean()), 4)


def import_faiss():
    """The module.

    Raises:
        InputError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise InputError(
            "--faiss takes faiss, which is not installed. Run pip install -e '.[faiss]', or leave the flag out: the "
            "exact search finds the same or better neighbours, in more time."
        ) from error
    return faiss


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
