"""Maps from scores to probabilities, against scikit-learn, scipy and cases by hand."""

import itertools
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import brier_score_loss, log_loss

from cosent.evaluation.calibration import (
    Calibration,
    at_base_rate,
    cross_validated_log_loss,
    fit_calibration,
    fit_isotonic,
    fit_platt,
    probability_metrics,
    sigmoid,
)
from cosent.models.decision import DecisionRule


def drawn(rows: int, curve, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores within 0..1, and labels that are 1 with the probability `curve(score)`."""
    rng = np.random.default_rng(seed)
    scores = rng.random(rows)
    return scores, (rng.random(rows) < curve(scores)).astype(float)


def logistic(scores):
    return sigmoid(8 * scores - 5)


def steps(scores):
    return np.select([scores < 0.3, scores < 0.6, scores < 0.9], [0.05, 0.5, 0.55], 0.98)


@pytest.mark.parametrize("curve, method", [(logistic, "platt"), (steps, "isotonic")])
def test_the_method_that_fits_the_data_wins_and_finds_the_true_probabilities(curve, method):
    """Fails if the choice favours a method whatever the data, or probabilities are not shares of similar pairs."""
    calibration = fit_calibration(*drawn(20_000, curve))
    assert calibration.method == method == min(calibration.log_loss, key=calibration.log_loss.get)
    scores, labels = drawn(20_000, curve, seed=1)
    assert np.abs(calibration.probabilities(scores) - curve(scores)).mean() < 0.015
    before, after = (probability_metrics(p, labels) for p in (scores.clip(0, 1), calibration.probabilities(scores)))
    assert after["calibration_error"] < 0.015 < 0.05 < before["calibration_error"]
    assert after["brier"] < before["brier"] and after["log_loss"] < before["log_loss"]


def test_pairs_are_never_judged_by_a_map_that_has_seen_them():
    """Fails if the contest is held on the fitted pairs, where isotonic wins even on labels that are pure chance."""
    scores, labels = drawn(400, logistic)
    labels = np.random.default_rng(2).permutation(labels)
    seen = {
        fit.__name__: probability_metrics(fit(scores, labels).probabilities(scores), labels)["log_loss"]
        for fit in (fit_isotonic, fit_platt)
    }
    assert seen["fit_isotonic"] < seen["fit_platt"]
    calibration = fit_calibration(scores, labels)
    assert calibration.method == "platt" and calibration.log_loss["isotonic"] > seen["fit_isotonic"]
    assert calibration.log_loss["platt"] == cross_validated_log_loss("platt", scores, labels)  # the same folds


def test_platt_is_the_line_of_least_smoothed_log_loss():
    """Fails if scikit-learn regularises the slope, or the shift of the scores is not undone: cosines lie around 0.9."""
    scores, labels = drawn(500, logistic)
    scores = (0.9 + 0.02 * scores).astype(np.float32)
    ones = labels.sum()
    targets = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (500 - ones + 2))

    def loss(line):
        logits = line[0] * (scores.astype(float) - 0.91) / 0.01 + line[1]
        return np.sum(np.logaddexp(0, logits) - targets * logits)

    slope, intercept = minimize(loss, (0.0, 0.0), tol=1e-12).x
    expected = sigmoid(slope * (scores.astype(float) - 0.91) / 0.01 + intercept)
    assert fit_platt(scores.astype(float), labels).probabilities(scores) == pytest.approx(expected, abs=1e-5)


def test_isotonic_by_hand():
    """Scores 1..6, labels 0 0 1 0 1 1, and a pair of the other label at each end. Lowest block: labels 0, 1 at
    score 1 and 0 at score 2 give 1/3. Middle: 1, 0 give 1/2. Highest: 1 at score 5; 1, 0 at score 6 pool to 2/3."""
    curve = fit_isotonic(np.arange(1.0, 7), np.array([0.0, 0, 1, 0, 1, 1]))
    assert curve.probabilities([1, 2, 3, 4, 5, 6]) == pytest.approx([1 / 3, 1 / 3, 1 / 2, 1 / 2, 2 / 3, 2 / 3])
    assert curve.probabilities([-9, 2.5, 99]) == pytest.approx([1 / 3, 5 / 12, 2 / 3])


def test_a_higher_score_never_has_a_lower_probability():
    """Fails if ranking by probability differs from ranking by score, with ties, few rows or scores that mislead."""
    for rows, seed in itertools.product((10, 40, 1000), range(2)):
        rng = np.random.default_rng(seed)
        scores, labels = rng.normal(size=rows).round(1), (rng.random(rows) < 0.3).astype(float)
        labels[:2] = 0, 1
        for fit in (fit_platt, fit_isotonic, fit_calibration):
            everywhere = fit(scores, labels).probabilities(np.linspace(-5, 5, 1001))
            assert (np.diff(everywhere) >= 0).all() and everywhere[0] > 0 and everywhere[-1] < 1
            assert len(set(fit(scores, labels).probabilities(np.full(3, scores[0])))) == 1


@pytest.mark.parametrize("scores", [np.full(100, 0.9), np.arange(100.0)], ids=["equal", "reversed"])
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_scores_that_say_nothing_give_the_share_of_similar_pairs(scores, share):
    """Fails if a collapsed or inverted model divides by zero, or ranks upside down."""
    labels = (np.arange(100) < 100 * share).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probabilities = fit_calibration(scores, labels).probabilities([-1e6, 0.9, 1e6])
    assert np.ptp(probabilities) == 0 and probabilities[0] == pytest.approx(share, abs=0.015)


def test_no_number_of_pairs_proves_certainty():
    """Fails if the log loss of one surprising pair is infinite, for scores that separate the labels of validation."""
    scores, labels = np.arange(200.0), (np.arange(200) >= 100).astype(float)
    for fit in (fit_platt, fit_isotonic):
        least, most = fit(scores, labels).probabilities([-1e9, 1e9])
        assert 1 / 202 <= least < 0.02 and 0.98 < most <= 1 - 1 / 202
    assert fit_isotonic(scores, labels).probabilities([0.0, 199]) == pytest.approx([1 / 101, 100 / 101])
    few = fit_calibration(np.arange(12.0), (np.arange(12) > 5).astype(float))
    assert few.method == "platt" and few.log_loss == {}, "12 pairs became a staircase"
    with pytest.raises(ValueError, match="0 and 1"):
        fit_calibration(np.arange(30.0), np.ones(30))


def test_metrics_equal_scikit_learn_and_the_definition():
    """Fails if our Brier score, log loss or calibration error are not those of the field."""
    rng = np.random.default_rng(0)
    p = rng.random(300)
    p[:2] = 0, 1
    y = (rng.random(300) < p).astype(float)
    ours = probability_metrics(p, y)
    assert ours["brier"] == pytest.approx(brier_score_loss(y, p))
    assert ours["log_loss"] == pytest.approx(log_loss(y, np.clip(p, 1e-7, 1 - 1e-7)))
    error = 0.0
    for k in range(15):
        inside = (p >= k / 15) & ((p < (k + 1) / 15) | (k == 14))
        error += abs(p[inside].sum() - y[inside].sum()) / 300
    assert ours["calibration_error"] == pytest.approx(error) and error > 0.01
    for wrong in (([0.5, 1.5], [0, 1]), ([0.5, np.nan], [0, 1]), ([0.5, 0.5], [0, 3]), ([0.5], [0, 1])):
        with pytest.raises(ValueError, match="probabilities"):
            probability_metrics(*map(np.array, wrong))


def test_another_base_rate():
    """A probability of 0.5 among pairs of which half are similar is an odds ratio of 1: at a base rate of 0.1 it is 1
    in 10. Twice the odds, 2 / 3, become 2 * (1 / 9) = 2 / 9, a probability of 2 / 11. Fails if the odds are corrected
    the wrong way round, or verdicts stay at the threshold of the corpus."""
    probabilities = np.array([0.5, 2 / 3])
    np.testing.assert_allclose(at_base_rate(probabilities, 0.5, 0.1), [0.1, 2 / 11])
    np.testing.assert_allclose(at_base_rate(probabilities, 0.3, 0.3), probabilities)
    rule = DecisionRule(
        "faq", 0.5, Calibration(method="platt", pairs=98, base_rate=0.5, slope=4.0, intercept=-2.0), base_rate=0.1
    )
    assert rule.probabilities([0.5]) == pytest.approx([0.1])
    assert rule.similar([1.0, 1.1]).tolist() == [False, True]  # odds of 9 are at (2 + log 9) / 4 = 1.049
