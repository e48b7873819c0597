"""Intervals of differences, against scipy and on paper."""

import numpy as np
import pytest
from scipy import stats

from cosent.evaluation import significance
from cosent.evaluation.significance import difference, mean_of_ranks, ranks, resampled_spearman, spearman


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


def test_what_has_no_order_has_no_correlation(rng):
    """Fails if a model whose scores are not numbers, or all equal, looks measured."""
    labels, scores = rng.integers(0, 2, 10).astype(float), rng.normal(size=10)
    for bad in (np.where(np.arange(10) == 3, np.nan, scores), np.ones(10)):
        assert np.isnan(spearman(bad, labels)) and np.isnan(spearman(labels, bad))
    assert np.isnan(resampled_spearman(np.stack([np.ones(10), scores]), labels, resamples=5)[:, 0]).all()


def test_many_rows_are_drawn_as_few(rng, monkeypatch):
    """Fails if the blocks in which resamples are computed, or the other runs of a call, change what is drawn."""
    labels, scores = rng.integers(0, 2, 3000), rng.normal(size=(2, 3000))
    both = resampled_spearman(scores, labels, resamples=400)
    monkeypatch.setattr(significance, "BLOCK", 7 * 3000)
    assert np.array_equal(both[:, :1], resampled_spearman(scores[:1], labels, resamples=400))
    assert np.array_equal(both[:, 1:], resampled_spearman(scores[1:], labels, resamples=400))


def test_a_method_does_not_differ_from_itself(rng):
    """Fails if rows or seeds are drawn differently for the two methods of a pair: identical scores give [0, 0]."""
    labels, scores = rng.integers(0, 2, 100), rng.normal(size=(3, 100))
    values = resampled_spearman(scores, labels, resamples=200)
    same = difference(values, values, 0.0)
    assert (same.low, same.high) == (0, 0) and not same.significant


def test_an_interval_on_paper():
    """Fails if the interval is not the 2.5th and 97.5th percentile of the differences, or seeds are not averaged.

    Differences per resample and seed are k + (-1, +1) for k = 0..1000, so that drawing the two seeds adds a mean of
    -1, 0 or +1; with one seed nothing is drawn and the percentiles are those of 0..1000: 25 and 975.
    """
    k = np.arange(1001.0)
    one = difference(k[:, None], np.zeros((1001, 1)), 500.0)
    assert (one.mean, one.low, one.high, one.significant) == (500, 25, 975, True)
    two = difference(np.stack([k - 1, k + 1], axis=1), np.zeros((1001, 2)), 500.0)
    assert abs(two.low - 25) <= 1 and abs(two.high - 975) <= 1
    seeds_only = difference(np.tile([-1.0, 1.0], (1001, 1)), np.zeros((1001, 2)), 0.0)
    assert (seeds_only.low, seeds_only.high) == (-1, 1), "the spread over seeds is left out"


def test_intervals_cover_what_they_should(rng):
    """Fails if a 95% interval is far too narrow or too wide: 60 data sets with two equally good methods.

    60 x 0.05 = 3 intervals are expected to miss 0; more than 9 has a probability of 0.1%.
    """
    missed = 0
    for data_set in range(60):
        labels = rng.normal(size=80)
        scores = labels + rng.normal(size=(2, 80))
        values = resampled_spearman(scores, labels, resamples=300, seed=data_set)
        missed += difference(values[:, :1], values[:, 1:], 0.0).significant
    assert 0 < missed <= 9


def test_fusion_on_paper():
    """Fails if fusing two runs depends on the scale of their scores, or ties are not shared.

    (1, 2, 3) and (3, 1.5, 1.5) give means of 2, 1.75 and 2.25.
    """
    assert ranks(np.array([9.0, 4.0, 4.0])).tolist() == [3, 1.5, 1.5]
    assert mean_of_ranks(np.array([[0.1, 0.2, 0.3], [900.0, 4.0, 4.0]])).tolist() == [2, 1.75, 2.25]


def test_labels_of_other_rows_are_refused():
    """Fails if scores of one test set are silently compared with the labels of another."""
    with pytest.raises(ValueError, match=r"Expected scores \(runs, rows\)"):
        resampled_spearman(np.zeros((2, 3)), np.zeros(4))
