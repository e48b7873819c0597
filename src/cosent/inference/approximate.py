"""Approximate nearest neighbours by faiss, for more vectors than an exact search is patient with."""

import glob
import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from cosent.errors import InputError, writing
from cosent.files import partial_file, write_atomically
from cosent.inference.neighbours import Vectors, blocks, nearest

logger = logging.getLogger(__name__)

KINDS = ("auto", "hnsw", "ivf")
LARGE = 1_000_000  # rows above which `auto` takes ivf, which is built in a fraction of the time
LINKS, BREADTH, EXPLORED = (
    32,
    200,
    128,
)  # of HNSW: links of a row; candidates while it is built, and when it is searched
PER_LIST, READ_SHARE = 40, 32  # of IVF: training rows of a list; one list in so many is read
ROWS = 65536  # added at a time
SAMPLE, DEPTH = 200, 10  # queries and neighbours that recall is measured with


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
        return f"faiss {self.kind} of {self.rows:,} vectors: recall@{DEPTH} {self.recall:.3f} of the exact search"


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
        for _, block in blocks(vectors, ROWS):
            index.add(np.ascontiguousarray(block))
            progress.update(len(block))
    return index


def recall(found: Approximate, vectors: Vectors) -> float:
    """Share of the nearest neighbours of evenly spaced rows, themselves excluded, that are found; 1 of a single row."""
    rows = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    depth, queries = min(DEPTH, len(vectors) - 1), vectors[rows]
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
            "--faiss takes faiss, which is not installed. Run pip install 'cosent[faiss]', or leave the flag out: the "
            "exact search finds the same or better neighbours, in more time."
        ) from error
    return faiss
