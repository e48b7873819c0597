"""The difference of two methods in Spearman correlation: its interval over test rows and over training seeds.

Rows are drawn with replacement, the same ones for both methods, and ranked anew; pairs that share a sentence are not
independent, so whole connected groups of pairs are drawn. That gives the variance of the rows and, from the spread over
seeds, that of other runs; their sum has an interval of Student's t, which is wide for three seeds.

Sources: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 6 (standard error); Koehn 2004,
Statistical Significance Tests for Machine Translation Evaluation (same test rows for both systems); Satterthwaite 1946,
An Approximate Distribution of Estimates of Variance Components.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000  # of the test rows, for a difference of two methods
BLOCK = 2**17  # drawn rows in memory at a time: they stay in the cache of a core
LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """A difference of two means over seeds."""

    mean: float  # of the differences by seed on the test rows as they are
    error: float  # its standard error over rows and seeds; of a single seed, over rows alone
    freedom: float  # degrees of freedom of Student's t

    @property
    def low(self) -> float:
        """Lower end of the 95% interval."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end of the 95% interval."""
        return self.mean + self.half

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def half(self) -> float:
        from scipy.stats import t

        return float(t.ppf(1 - LEVEL / 2, self.freedom)) * self.error


def spearman(scores: np.ndarray, labels: np.ndarray) -> float:
    """Spearman correlation of scores `(rows,)` with labels `(rows,)`; NaN if one of them is constant or has a NaN."""
    if np.isnan(scores).any() or np.isnan(labels).any():
        return float("nan")
    once = np.ones((1, len(labels)))
    return float(_correlations([_Ties.of(scores)], _Ties.of(labels), once)[0, 0])


def resampled_spearman(
    scores: np.ndarray,
    labels: np.ndarray,
    resamples: int = RESAMPLES,
    seed: int = 0,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """Spearman correlations of several runs `(runs, rows)` on the same resamples of their rows: `(resamples, runs)`.

    Each resample draws as many groups as there are, with replacement; `groups` `(rows,)` are numbers from 0, see
    `data.corpus.pair_groups`, None: each row is one. The same seed and groups draw the same rows. NaN in a resample
    whose labels or scores are all equal.
    """
    scores, labels = np.atleast_2d(scores), np.asarray(labels)
    _, rows = scores.shape
    if labels.shape != (rows,) or not rows:
        raise ValueError(f"Expected scores (runs, rows) and labels (rows,), got {scores.shape} and {labels.shape}.")
    of_labels, ties = _Ties.of(labels), [_Ties.of(row) for row in scores]
    drawn = _drawn(rows, resamples, seed, groups)
    return np.concatenate([_correlations(ties, of_labels, counts) for counts in drawn])


def resampled_means(
    values: np.ndarray, resamples: int = RESAMPLES, seed: int = 0, groups: np.ndarray | None = None
) -> np.ndarray:
    """Means of several runs `(runs, rows)` on the draws of `resampled_spearman`, float64 `(resamples, runs)`."""
    drawn = _drawn(values.shape[1], resamples, seed, groups)
    return np.concatenate([counts @ values.T / counts.sum(axis=1, keepdims=True) for counts in drawn])


def _drawn(rows: int, resamples: int, seed: int, groups: np.ndarray | None) -> Iterator[np.ndarray]:
    """How often each row is drawn in each resample, float64 `(resamples, rows)`, a block of resamples at a time."""
    if groups is not None:
        for counts in _drawn(int(groups.max()) + 1, resamples, seed, None):
            yield counts[:, groups]
        return
    rng, step = np.random.default_rng(seed), max(1, BLOCK // rows)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        places = rng.integers(rows, size=(size, rows)) + rows * np.arange(size)[:, None]
        yield np.bincount(places.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


def independent(groups: np.ndarray) -> float:
    """Effective number of groups of `(rows,)`: one large group counts little."""
    sizes = np.bincount(groups)
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


@dataclass(frozen=True)
class Components:
    """Variances of a difference that several seeds share."""

    seeds: int
    of_mean: float  # over rows, of the mean of all seeds
    both: float  # between rows and seeds, of one seed
    of_seeds: float  # over seeds on the same rows, which holds `both`
    groups: float  # how many groups of equal size the rows are worth, see `independent`

    def difference(self, mean: float) -> Difference:
        """The difference with its error, `of_mean + max(0, of_seeds - both) / seeds` squared.

        The degrees of freedom are Satterthwaite's: those of the groups for the rows, and `seeds - 1` for the seeds if
        they differ by more than their rows explain.
        """
        of_rows = max(1.0, self.groups - 1)
        if self.seeds == 1:
            return Difference(mean, self.of_mean**0.5, of_rows)
        squared = self.of_mean + max(0.0, self.of_seeds - self.both) / self.seeds
        spread = self.of_mean**2 / of_rows
        if self.of_seeds > self.both:
            spread += (self.of_seeds / self.seeds) ** 2 / (self.seeds - 1)
        return Difference(mean, squared**0.5, max(self.seeds - 1, squared**2 / spread) if spread else self.seeds - 1)


def components(gaps: np.ndarray, resampled: np.ndarray, groups: float) -> Components:
    """Unbiased variance components of the differences of two methods: `gaps` `(seeds,)` on the test rows as they are,
    and `resampled` `(resamples, seeds)`, NaN where a resample has no order.
    """
    seeds, of_mean = len(gaps), float(np.nanvar(resampled.mean(axis=1), ddof=1))
    if seeds == 1:
        return Components(1, of_mean, 0.0, 0.0, groups)
    of_one = float(np.nanvar(resampled, axis=0, ddof=1).mean())
    both = max(0.0, of_one - of_mean) * seeds / (seeds - 1)
    return Components(seeds, of_mean, both, float(np.var(gaps, ddof=1)), groups)


def difference(gaps: np.ndarray, resampled: np.ndarray, groups: float) -> Difference:
    """The mean of the differences of two methods over seeds, with its error over rows and seeds; as `components`."""
    return components(gaps, resampled, groups).difference(float(np.mean(gaps)))


def paired_interval(gap: float, resampled: np.ndarray, groups: float) -> tuple[float, float, float] | None:
    """The difference `gap` of two models on the same rows with its 95% interval; None where rows cannot tell it.

    Args:
        resampled: the difference on the same resamples, `(resamples,)`.
        groups: how many groups of equal size the rows are worth; a single one has no interval.
    """
    if np.isnan(gap) or groups <= 1:
        return None
    change = difference(np.array([gap]), resampled[:, None], groups)
    return change.mean, change.low, change.high


def paired_means(values: np.ndarray, groups: np.ndarray | None = None) -> tuple[float, float, float] | None:
    """Mean of the first minus mean of the second of two methods `(2, rows)`, with its 95% interval.

    Args:
        groups: of shape `(rows,)`, rows that are drawn together; default: each row is one.
    """
    drawn = resampled_means(values, groups=groups)
    worth = values.shape[1] if groups is None else independent(groups)
    return paired_interval(float(np.subtract(*values).mean()), drawn[:, 0] - drawn[:, 1], worth)


def paired_spearman(scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> tuple[float, float, float] | None:
    """As `paired_means`, of the Spearman correlations of two methods' scores `(2, rows)` with the labels."""
    drawn = resampled_spearman(scores, labels, groups=groups)
    gap = spearman(scores[0], labels) - spearman(scores[1], labels)
    return paired_interval(gap, drawn[:, 0] - drawn[:, 1], independent(groups))


@dataclass(frozen=True)
class _Ties:
    """Rows sorted by value, equal values together, from which the ranks of a resample are counted."""

    order: np.ndarray  # (rows,): row numbers by rising value
    ends: np.ndarray  # (values,): place in `order` where rows of a value end
    group: np.ndarray  # (rows,): place of the value of each row

    @classmethod
    def of(cls, values: np.ndarray) -> "_Ties":
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


def _correlations(scores: list[_Ties], labels: _Ties, counts: np.ndarray) -> np.ndarray:
    """Spearman correlations `(resamples, runs)` when each row is drawn `counts` `(resamples, rows)` times."""
    of_labels, label_squares = labels.deviations(counts)
    weighted = counts * of_labels
    correlations = np.empty((len(counts), len(scores)))
    for run, groups in enumerate(scores):
        deviations, squares = groups.deviations(counts)
        with np.errstate(invalid="ignore"):  # 0 / 0 where all are equal
            correlations[:, run] = np.einsum("ij,ij->i", deviations, weighted) / np.sqrt(squares * label_squares)
    return correlations
