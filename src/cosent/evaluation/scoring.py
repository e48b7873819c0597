"""Scores of a split: its metrics, with the threshold and the map that validation pairs decided."""

import numpy as np

from cosent.evaluation.calibration import calibration_metrics
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.evaluation.rules import DecisionRule


def evaluate_scores(
    scores: np.ndarray, labels: np.ndarray, rule: DecisionRule | None = None, tower: str | None = None
) -> dict[str, float]:
    """`SimilarityMetrics` of scores `(pairs,)` at the threshold of `rule`, which validation pairs decided.

    With a `tower`, for labels of 0 and 1, `calibration_metrics` too.
    """
    threshold, calibration = (None, None) if rule is None else (rule.threshold, rule.calibration)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
    return metrics if tower is None else metrics | calibration_metrics(calibration, scores, labels, tower)
