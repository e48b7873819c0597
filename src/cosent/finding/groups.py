"""Groups of sentences that are similar to each other."""

from collections.abc import Iterable

import numpy as np

from cosent.data.groups import components as linked
from cosent.errors import InputError
from cosent.inference.neighbours import Vectors

PAIRS = 10_000_000  # in memory before they are merged into groups
LARGEST = 50_000  # sentences of HDBSCAN, which takes sentences² * width operations on one core


def components(pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> np.ndarray:
    """Number of the group of each row: rows that are linked by pairs, directly or by others; int64 of shape `(rows,)`.

    Groups are numbered by their first row.
    """
    groups, held, count = np.arange(rows), [(np.arange(0), np.arange(0))], 0
    for pair in pairs:
        held.append(pair)
        count += len(pair[0])
        if count > PAIRS:
            groups, held, count = merged(groups, held), held[:1], 0
    return merged(groups, held)


def merged(groups: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The groups, with those of the rows of each pair joined."""
    first, second = (groups[np.concatenate([pair[side] for pair in pairs])] for side in (0, 1))
    return by_first_row(linked(first, second, len(groups))[groups])


def dense_clusters(vectors: Vectors, least: int) -> np.ndarray:
    """Group of each row by HDBSCAN, as for `components`; a row that belongs to none is one of its own.

    Args:
        vectors: unit vectors, whose Euclidean distance falls with their cosine.
        least: sentences of the smallest group.

    Raises:
        InputError: too many rows, or fewer than `least`.
    """
    if not least <= len(vectors) <= LARGEST:
        raise InputError(
            f"HDBSCAN groups {least} to {LARGEST:,} sentences here, got {len(vectors):,}: it takes time and memory by "
            "their square. Group by a threshold instead: leave --min_cluster_size out."
        )
    from sklearn.cluster import HDBSCAN

    found = HDBSCAN(min_cluster_size=least, copy=True).fit_predict(vectors[0 : len(vectors)])
    alone = found < 0
    found[alone] = found.max(initial=-1) + 1 + np.arange(alone.sum())
    return by_first_row(found)


def by_first_row(groups: np.ndarray) -> np.ndarray:
    """The same groups, numbered in the order of their first rows."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]
