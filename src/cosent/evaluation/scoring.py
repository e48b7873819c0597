"""Scores of a split: its metrics with the threshold and the calibration of validation pairs."""

from dataclasses import dataclass

import numpy as np

from cosent.evaluation.calibration import Calibration, calibration_metrics, fit_calibration
from cosent.evaluation.metrics import SimilarityMetrics, can_rank, find_threshold


@dataclass(frozen=True)
class Validation:
    """Threshold and calibration found on validation pairs; None without such pairs, or if their labels are graded."""

    threshold: float | None = None
    calibration: Calibration | None = None

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray) -> "Validation":
        """Those of pairs with labels of 0 and 1; no calibration if all labels are equal."""
        return cls(find_threshold(scores, labels)[0], fit_calibration(scores, labels) if can_rank(labels) else None)


def evaluate_scores(
    scores: np.ndarray, labels: np.ndarray, validation: Validation | None = None, tower: str | None = None
) -> dict[str, float]:
    """`SimilarityMetrics` of scores `(pairs,)` at the threshold of `validation`.

    With a `tower`, for labels of 0 and 1, `calibration_metrics` too.
    """
    validation = validation or Validation()
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=validation.threshold)
    return metrics if tower is None else metrics | calibration_metrics(validation.calibration, scores, labels, tower)
