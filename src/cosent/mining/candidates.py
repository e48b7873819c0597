"""Unlabelled pairs: neighbours of certain ranks, and random ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tqdm.auto import tqdm

from cosent.compute.distributed import gather_object, rank, world_size
from cosent.errors import InputError
from cosent.inference.neighbours import nearest
from cosent.mining.pool import Pool, among

QUERIES = 8192  # whose neighbours are in memory at a time
PAIRS = 65536  # whose vectors are in memory at a time
DRAWS = 100  # rounds of drawing random pairs, before they are said to be too many

Pairs = tuple[np.ndarray, np.ndarray]  # places of the first and second sentences, int64 of shape (pairs,) each


@dataclass(frozen=True)
class Ranks:
    """Which neighbours of a sentence form a pair with it; the parameters of `mine_hard_negatives` with other words.

    Ranks are counted among the neighbours that remain after all others were left out.

    Args:
        range_min: how many of the nearest are skipped.
        range_max: how many of the nearest are looked at.
        per_sentence: how many are taken, nearest first.
        margin: least distance of their cosine below that of the least similar sentence that is labelled similar.
        max_score: their highest cosine.
    """

    range_min: int
    range_max: int
    per_sentence: int
    margin: float | None = None
    max_score: float | None = None


def check_ranks(ranks: Ranks, pool: Pool) -> None:
    """Refuses ranks that do not exist, before anything is embedded.

    Raises:
        InputError: more neighbours than there are other sentences.
    """
    if ranks.range_max > pool.size - 1:
        raise InputError(
            f"--range_max {ranks.range_max}: each of the {pool.size} sentences has {pool.size - 1} others, so ranks "
            "up to there do not exist. Lower it, or add sentences with --text."
        )


def neighbour_pairs(
    pool: Pool,
    vectors: np.ndarray,
    ranks: Ranks,
    similar: np.ndarray,
    left_out: Counter,
    find: Callable[[np.ndarray, int, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
) -> Pairs:
    """Pairs of a sentence with its neighbours, none that is known, each once.

    Processes that were launched together share out the sentences.

    Args:
        vectors: unit vectors of the pool, float32 of shape `(pool.size, width)`.
        similar: bool of shape `(labelled pairs,)`, which of them are similar.
        left_out: reason -> number of neighbours, to count in.
        find: queries, k and rows to exclude -> rows and scores, as `nearest`; default: the exact search.
    """
    limits = None if ranks.margin is None else lowest_similar(pool, vectors, similar) - ranks.margin
    k = min(ranks.range_max + pool.most_known(), pool.size - 1)
    starts = range(0, pool.size, QUERIES)[rank() :: world_size()]
    counted, found = Counter(), {}
    for start in tqdm(starts, desc="Neighbours", unit="block", disable=rank() > 0):
        queries = np.arange(start, min(start + QUERIES, pool.size))
        found_by = partial(nearest, vectors[queries], vectors) if find is None else partial(find, vectors[queries])
        rows, scores = found_by(k, exclude=queries)
        kept = (rows >= 0) & remaining(pool, queries[:, None], rows, scores, ranks, limits, counted)
        place = kept.cumsum(axis=1) - 1
        kept &= (place >= ranks.range_min) & (place < min(ranks.range_max, ranks.range_min + ranks.per_sentence))
        query, column = kept.nonzero()
        found[start] = (queries[query], rows[query, column])
    blocks: dict[int, Pairs] = {}
    for part, some in gather_object((found, counted)):
        blocks |= part
        left_out.update(some)
    ordered = [blocks[start] for start in sorted(blocks)]
    first, second = np.concatenate([one for one, _ in ordered]), np.concatenate([other for _, other in ordered])
    once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
    left_out["neighbour found from both sentences"] += len(first) - len(once)
    return first[once], second[once]


def remaining(
    pool: Pool,
    queries: np.ndarray,
    rows: np.ndarray,
    scores: np.ndarray,
    ranks: Ranks,
    limits: np.ndarray | None,
    left_out: Counter,
) -> np.ndarray:
    """Which neighbours remain: bool of shape `(queries, k)`.

    Args:
        queries: places of shape `(queries, 1)`.
        rows, scores: result of `nearest`.
        limits: highest cosine by sentence, of shape `(pool.size,)`.
    """
    kept = ~pool.known(np.broadcast_to(queries, rows.shape), rows)
    left_out["neighbour that is labelled or the same sentence"] += int((~kept).sum())
    checks = {"neighbour within the margin": None if limits is None else limits[queries],
              "neighbour above the highest cosine": ranks.max_score}  # fmt: skip
    for reason, limit in checks.items():
        if limit is not None:
            too_high = kept & (scores > limit)
            left_out[reason] += int(too_high.sum())
            kept &= ~too_high
    return kept


def lowest_similar(pool: Pool, vectors: np.ndarray, similar: np.ndarray) -> np.ndarray:
    """Cosine of each sentence of the pool with the least similar one that is labelled similar: float32 `(size,)`.

    -inf for a sentence without one, so that all neighbours are above it.
    """
    inside = similar & (pool.first < pool.size) & (pool.second < pool.size)
    first, second = pool.first[inside], pool.second[inside]
    lowest = np.full(pool.size, np.inf, np.float32)
    scores = cosines(vectors, first, second)
    np.minimum.at(lowest, first, scores)
    np.minimum.at(lowest, second, scores)
    lowest[np.isinf(lowest)] = -np.inf
    return lowest


def cosines(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of pairs of rows of unit vectors, float32 of shape `(pairs,)`."""
    scores = np.empty(len(first), np.float32)
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        scores[part] = np.einsum("pw,pw->p", vectors[first[part]], vectors[second[part]])
    return scores


def random_pairs(pool: Pool, count: int, taken: Pairs, rng: np.random.Generator) -> Pairs:
    """`count` random pairs of the pool, each once, none that is known or taken.

    Raises:
        InputError: there are too few such pairs.
    """
    used = np.sort(pool.keys(*taken))
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(DRAWS):
        if len(first) >= count:
            break
        new = rng.integers(pool.size, size=(2, 2 * (count - len(first)) + 16))
        new = new[:, ~(pool.known(*new) | among(pool.keys(*new), used))]
        first, second = np.r_[first, new[0]], np.r_[second, new[1]]
        once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
        first, second = first[once], second[once]
    if len(first) < count:
        raise InputError(
            f"--random {count}: only {len(first)} such pairs were found among {pool.size} sentences that are neither "
            "labelled nor taken. Lower it, or add sentences with --text."
        )
    return first[:count], second[:count]


def some_of(pairs: np.ndarray, count: int | None, rng: np.random.Generator) -> np.ndarray:
    """Sorted places of `count` random pairs; of all for None or a higher number."""
    if count is None or count >= len(pairs):
        return np.arange(len(pairs))
    return np.sort(rng.choice(len(pairs), count, replace=False))
