"""Paired bootstrap intervals of the difference between two methods' Spearman correlations.

A resample draws test rows with replacement, the same rows for every method, and ranks the drawn rows anew; with several
seeds it also draws seeds with replacement, the same seeds for both methods. The interval therefore says how the
difference varies over other test rows *and* over other runs. Two or three seeds are few to draw from: they make the
interval too narrow rather than too wide.

Sources: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13 (percentile interval); Koehn 2004,
Statistical Significance Tests for Machine Translation Evaluation (same test rows for both systems); Owen 2007, The
Pigeonhole Bootstrap, Annals of Applied Statistics 1(2) (rows and seeds, which cross, are drawn independently).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
BLOCK = 2**17  # drawn rows in memory at a time: they stay in the cache of a core


@dataclass(frozen=True)
class Difference:
    """A difference of two means over seeds, and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1 along the last axis of `values`; equal values share the mean of their ranks."""
    from scipy.stats import rankdata  # takes a second, which `report --help` need not wait for

    return rankdata(values, axis=-1)


def spearman(scores: np.ndarray, labels: np.ndarray) -> float:
    """Spearman correlation of scores `(rows,)` with labels `(rows,)`; NaN if one of them is constant or has a NaN."""
    if np.isnan(scores).any() or np.isnan(labels).any():
        return float("nan")
    once = np.ones((1, len(labels)))
    return float(_correlations([_Groups.of(scores)], _Groups.of(labels), once)[0, 0])


def mean_of_ranks(scores: np.ndarray) -> np.ndarray:
    """Mean rank of each row over several runs: `(runs, rows)` -> `(rows,)`.

    Scales do not matter, so cosines and logits can be fused. Source: kexue.fm 9341, which suggests the fusion.
    """
    return ranks(scores).mean(axis=0)


def resampled_spearman(scores: np.ndarray, labels: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Spearman correlations of several runs on the same resamples of their rows.

    Args:
        scores: `(runs, rows)`.
        labels: `(rows,)`.
        resamples: number of bootstrap samples, each of as many rows as there are, drawn with replacement.
        seed: the same seed and number of rows draw the same rows, so that calls can be compared.

    Returns:
        float64 `(resamples, runs)`; NaN in a resample whose labels or scores are all equal.
    """
    scores, labels = np.atleast_2d(scores), np.asarray(labels)
    _, rows = scores.shape
    if labels.shape != (rows,) or not rows:
        raise ValueError(
            f"Expected scores (runs, rows) and labels (rows,), got {scores.shape} and {labels.shape}. Scores would be "
            "compared with the labels of other rows. Pass one score and one label per row."
        )
    label_groups, groups = _Groups.of(labels), [_Groups.of(row) for row in scores]
    return np.concatenate([_correlations(groups, label_groups, counts) for counts in _drawn(rows, resamples, seed)])


def resampled_means(values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Means of several runs on the same resamples of their rows, float64 `(resamples, runs)`.

    Args:
        values: `(runs, rows)`.
        resamples, seed: as for `resampled_spearman`, with the same draws.
    """
    _, rows = values.shape
    return np.concatenate([counts @ values.T / rows for counts in _drawn(rows, resamples, seed)])


def _drawn(rows: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """How often each row is drawn in each resample, float64 `(resamples, rows)`, a block of resamples at a time."""
    rng, step = np.random.default_rng(seed), max(1, BLOCK // rows)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        places = rng.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
        yield np.bincount(places.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


def difference(first: np.ndarray, second: np.ndarray, observed: float) -> Difference:
    """Interval of mean(first) - mean(second) over seeds, from `resampled_spearman` of both on the same rows.

    Args:
        first, second: `(resamples, seeds)`, column i of both from the same training seed.
        observed: the difference of the means on the test rows as they are.
    """
    resamples, seeds = first.shape
    drawn = np.random.default_rng(0).integers(seeds, size=(resamples, seeds))
    differences = np.take_along_axis(first - second, drawn, axis=1).mean(axis=1)
    low, high = np.nanpercentile(differences, (2.5, 97.5))
    return Difference(observed, float(low), float(high))


@dataclass(frozen=True)
class _Groups:
    """Rows sorted by value and grouped by equal value, from which the ranks of a resample are counted."""

    order: np.ndarray  # (rows,): row numbers by rising value
    ends: np.ndarray  # (groups,): place in `order` where a group ends
    group: np.ndarray  # (rows,): group of each row

    @classmethod
    def of(cls, values: np.ndarray) -> "_Groups":
        _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
        return cls(np.argsort(group, kind="stable"), np.cumsum(counts) - 1, group)

    def deviations(self, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Twice the distance of each rank from the mean rank, `(resamples, rows)`, and the sum of its square over rows.

        The rank of a row is (drawn rows below its group) + (size of the group + 1) / 2, when each row is drawn `counts`
        `(resamples, rows)` times. Twice that is a whole number, so that sums are exact up to 300,000 rows.
        """
        up_to = np.take(np.cumsum(np.take(counts, self.order, axis=1), axis=1), self.ends, axis=1)
        sizes = np.diff(up_to, axis=1, prepend=0)
        twice = 2 * up_to - sizes
        twice -= up_to[:, -1:]
        return np.take(twice, self.group, axis=1), np.einsum("ij,ij,ij->i", sizes, twice, twice)


def _correlations(scores: list[_Groups], labels: _Groups, counts: np.ndarray) -> np.ndarray:
    """Spearman correlations `(resamples, runs)` when each row is drawn `counts` `(resamples, rows)` times."""
    of_labels, label_squares = labels.deviations(counts)
    weighted = counts * of_labels
    found = np.empty((len(counts), len(scores)))
    for run, groups in enumerate(scores):
        deviations, squares = groups.deviations(counts)
        with np.errstate(invalid="ignore"):  # 0 / 0 where all are equal
            found[:, run] = np.einsum("ij,ij->i", deviations, weighted) / np.sqrt(squares * label_squares)
    return found
