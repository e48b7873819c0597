"""Scores of a split with the threshold and the calibration of validation pairs."""

import numpy as np
import pytest

from cosent.evaluation.rules import DecisionRule
from cosent.evaluation.scoring import evaluate_scores

SCORES, LABELS = np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 1.0, 0.0, 0.0])


def test_a_split_is_scored_with_what_validation_decided():
    """Fails if a threshold is chosen on the scored pairs, or probabilities are reported without a map or its tower."""
    rule = DecisionRule.of("faq", SCORES, LABELS)
    assert rule.threshold == pytest.approx(0.55) and rule.calibration.pairs == 4
    other = np.array([0.9, 0.5, 0.3, 0.1])  # a threshold of its own would be right on every pair
    metrics = evaluate_scores(other, LABELS, rule)
    assert metrics["accuracy"] == 0.75 and "brier" not in metrics
    calibrated = evaluate_scores(other, LABELS, rule, "bi_encoder")
    squares = [(0.9 - 1) ** 2, (0.5 - 1) ** 2, 0.3**2, 0.1**2]
    assert calibrated["uncalibrated_brier"] == pytest.approx(sum(squares) / 4)
    expected = rule.calibration.probabilities(other) - LABELS
    assert calibrated["brier"] == pytest.approx(np.square(expected).mean())
    without = evaluate_scores(other, LABELS, tower="bi_encoder")
    assert without.keys() & {"accuracy", "brier"} == set() and "uncalibrated_brier" in without


def test_validation_of_one_label_has_no_probabilities():
    """Fails if a map is fitted where nothing is dissimilar."""
    rule = DecisionRule.of("faq", SCORES, np.ones(4))
    assert rule.calibration is None and rule.threshold < SCORES.min()
