"""Metrics of probabilities against labels of 0 and 1: Brier score, log loss and expected calibration error."""

import numpy as np

BINS = 15
LEAST = 1e-7  # of float32, in which models compute: a probability of 0 or 1 counts as this far from it


def probability_metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """`brier`, `log_loss` and `calibration_error`; lower is better.

    Args:
        probabilities: that each pair is similar, shape `(pairs,)`, at least one.
        labels: 0 or 1, shape `(pairs,)`.

    Returns:
        `brier`: `mean of (p - y)^2`.
        `log_loss`: `-mean of log(p if y = 1 else 1 - p)`, natural logarithm.
        `calibration_error`: `sum over bins of |mean p - share of y = 1| * share of the pairs`, the expected calibration
        error over `BINS` bins of equal width.

    Raises:
        ValueError: different shapes, probabilities outside 0..1 (NaN too), other labels.

    Source: Brier 1950; Naeini et al. 2015 and Guo et al. 2017 (https://arxiv.org/abs/1706.04599), with the probability
    of the label 1 in place of the confidence in the predicted class.
    """
    p, y = _check(probabilities, labels)
    clipped = np.clip(p, LEAST, 1 - LEAST)
    counts, means, shares = reliability(p, y)
    return {
        "brier": float(np.mean((p - y) ** 2)),
        "log_loss": float(-np.mean(np.log(np.where(y == 1, clipped, 1 - clipped)))),
        "calibration_error": float(np.sum(np.abs(means - shares) * counts) / len(p)),
    }


def reliability(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bins of equal width that are not empty: number of pairs, mean probability and share of similar pairs of each.

    Bin k of `BINS` holds `k / BINS <= p < (k + 1) / BINS`, the last one also p = 1.
    """
    p, y = _check(probabilities, labels)
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    held = counts > 0
    means, shares = (np.bincount(bins, weights=values, minlength=BINS)[held] / counts[held] for values in (p, y))
    return counts[held], means, shares


def _check(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if p.ndim != 1 or p.shape != y.shape or not len(p):
        raise ValueError(
            f"Expected probabilities and labels of one shape (pairs,), got {p.shape} and {y.shape}. They would be "
            "compared with the labels of other pairs. Pass one of each per pair, and at least one pair."
        )
    if not ((p >= 0) & (p <= 1)).all() or not np.isin(y, (0, 1)).all():
        raise ValueError(
            "Expected probabilities within 0..1 and labels of 0 and 1, got others. The Brier score and the log loss "
            "of such rows mean nothing. Pass calibrated scores, not raw ones, and no graded labels."
        )
    return p, y
