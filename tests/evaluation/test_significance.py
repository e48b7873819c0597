"""Intervals of differences, against scipy and on paper."""

import numpy as np
import pytest
from scipy import stats

from cosent.evaluation import significance
from cosent.evaluation.significance import (
    difference,
    independent,
    resampled_means,
    resampled_spearman,
    spearman,
)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.mark.parametrize("graded", [False, True])
def test_resampled_spearman_is_scipys(rng, graded):
    """Fails if counting ranks in a resample is not the same as ranking its rows anew, ties among labels included."""
    labels = rng.integers(0, 5 if graded else 2, 40).astype(float)
    scores = np.stack([labels + rng.normal(size=40), rng.integers(0, 6, 40)])  # the second run has ties
    values = resampled_spearman(scores, labels, resamples=50, seed=3)
    drawn = np.random.default_rng(3).integers(40, size=(50, 40))
    expected = [[stats.spearmanr(run[rows], labels[rows]).statistic for run in scores] for rows in drawn]
    assert values == pytest.approx(np.array(expected), abs=1e-12)
    assert spearman(scores[0], labels) == pytest.approx(stats.spearmanr(scores[0], labels).statistic, abs=1e-12)


def test_what_has_no_order_has_no_correlation(rng, monkeypatch):
    """Fails if a model whose scores are not numbers, or all equal, looks measured, or the blocks in which resamples are
    computed change what is drawn."""
    labels, scores = rng.integers(0, 2, 10).astype(float), rng.normal(size=10)
    for bad in (np.where(np.arange(10) == 3, np.nan, scores), np.ones(10)):
        assert np.isnan(spearman(bad, labels)) and np.isnan(spearman(labels, bad))
    assert np.isnan(resampled_spearman(np.stack([np.ones(10), scores]), labels, resamples=5)[:, 0]).all()
    labels, scores = rng.integers(0, 2, 3000), rng.normal(size=(2, 3000))
    both = resampled_spearman(scores, labels, resamples=400)
    monkeypatch.setattr(significance, "BLOCK", 7 * 3000)
    assert np.array_equal(both[:, :1], resampled_spearman(scores[:1], labels, resamples=400))
    assert np.array_equal(both[:, 1:], resampled_spearman(scores[1:], labels, resamples=400))


def test_groups_are_drawn_whole(rng):
    """Fails if pairs that share a sentence are drawn apart: with one group, every resample is the rows as they are."""
    labels, scores = rng.normal(size=60), rng.normal(size=(1, 60))
    whole = resampled_spearman(scores, labels, resamples=5, groups=np.zeros(60, int))
    assert whole == pytest.approx(np.full((5, 1), spearman(scores[0], labels)), abs=1e-12)
    twins = resampled_spearman(np.repeat(scores, 2, axis=1), np.repeat(labels, 2), groups=np.repeat(np.arange(60), 2))
    assert twins == pytest.approx(resampled_spearman(scores, labels), abs=1e-12), "a copy of each row adds no evidence"
    sizes = np.array([0, 0, 0, 1])
    means = resampled_means(np.array([[1.0, 1.0, 1.0, 5.0]]), resamples=50, groups=sizes)
    assert set(means.ravel().round(9)) == {1.0, 2.0, 5.0}
    assert independent(sizes) == 16 / 10 and independent(np.arange(7)) == 7


def test_an_error_on_paper():
    """Fails if a variance is counted twice, or not at all.

    Resamples of -1 and 1, the same for both seeds, have a variance of 4/3 for rows and none between rows and seeds;
    gaps of 1 and 5 have one of 8, hence 4/3 + 8/2. Opposite signs cancel in the mean: 8/3 of the 8 are between rows and
    seeds.
    """
    rows = np.array([-1.0, -1.0, 1.0, 1.0])
    equal = difference(np.array([1.0, 5.0]), np.stack([rows, rows], axis=1), 11)
    assert equal.mean == 3 and equal.error**2 == pytest.approx(4 / 3 + 4)
    assert equal.freedom == pytest.approx((4 / 3 + 4) ** 2 / ((4 / 3) ** 2 / 10 + 4**2 / 1))
    steady = difference(np.array([3.0, 3.1]), np.stack([rows, -rows + rows[::-1] / 2], axis=1), 11)
    assert steady.freedom == pytest.approx(10), "seeds that differ less than their rows explain say nothing more"
    opposite = difference(np.array([1.0, 5.0]), np.stack([rows, -rows], axis=1), 11)
    assert opposite.error**2 == pytest.approx((8 - 8 / 3) / 2) and opposite.freedom == 1
    one = difference(np.array([2.0]), rows[:, None], 11)
    assert (one.mean, one.freedom) == (2, 10) and one.error**2 == pytest.approx(4 / 3)
    assert one.high - 2 == pytest.approx(stats.t.ppf(0.975, 10) * one.error)


@pytest.mark.parametrize(
    "seeds, of_seeds, grouped",
    [(1, 0.0, False), (3, 0.3, False), pytest.param(10, 0.3, True, marks=pytest.mark.matrix)],
)
def test_intervals_cover_what_they_should(seeds, of_seeds, grouped):
    """Fails if a 95% interval is too narrow or far too wide: 150 studies of two methods whose runs are equally good.

    Each run has noise of its own and a quality of its own (`of_seeds`); grouped rows are four near copies.
    7.5 misses are expected, 16 or more have a probability below 0.5%.
    """
    missed = 0
    for study in range(150):
        rng = np.random.default_rng(study)
        count = 40 if grouped else 120
        labels, shared = rng.normal(size=count), rng.normal(size=(2, 1, count))
        quality = 1 + of_seeds * rng.normal(size=(2, seeds, 1))
        groups = np.arange(count)
        if grouped:
            labels, shared, groups = (np.repeat(values, 4, axis=-1) for values in (labels, shared, groups))
        noise = shared + 0.5 * rng.normal(size=(2, seeds, len(labels)))
        scores = (quality * labels + noise).reshape(2 * seeds, -1)
        each = np.array([spearman(row, labels) for row in scores])
        resampled = resampled_spearman(scores, labels, resamples=200, seed=study, groups=groups)
        found = difference(
            each[:seeds] - each[seeds:], resampled[:, :seeds] - resampled[:, seeds:], independent(groups)
        )
        missed += found.significant
    assert missed < 16, "too narrow"
    assert missed > 0 or seeds == 3, "too wide"
