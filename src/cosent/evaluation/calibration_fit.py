"""Fit a map from scores to probabilities: Platt's or isotonic, whichever has the lower cross-validated log loss.

On the pairs that it was fitted on, the isotonic map has the lower log loss nearly always, as it may follow them step
by step. So the two compete on pairs that they have not seen: `FOLDS` folds of the validation split, each with the same
share of similar pairs, drawn with a fixed seed. The winner is then fitted on all pairs.
"""

import numpy as np

from cosent.evaluation.calibration import METHODS, Calibration, Isotonic, Platt
from cosent.evaluation.probability_metrics import probability_metrics

FOLDS = 5
SCARCE = 2 * FOLDS  # pairs of a label; with fewer, folds decide nothing, and Platt's two numbers are taken


def fit_calibration(scores: np.ndarray, labels: np.ndarray) -> Calibration:
    """The map of the method with the lower cross-validated log loss; Platt's on a tie, or with few pairs of a label.

    Equal scores get equal probabilities; if all are equal, the share of similar pairs. A map never falls: for scores
    that are higher for dissimilar pairs, it is that share too.

    Args:
        scores: any finite numbers, shape `(pairs,)`.
        labels: 0 or 1, both of them present.

    Raises:
        ValueError: labels of one kind, or what `probability_metrics` refuses.
    """
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if not np.array_equal(np.unique(labels), (0, 1)):
        raise ValueError(
            f"Expected labels of 0 and 1, both of them, got {np.unique(labels)[:5]}. Every pair would get the same "
            "probability, whatever its score. Fit on a split with both."
        )
    if np.bincount(labels.astype(int)).min() < SCARCE:
        return FITS["platt"](scores, labels)
    losses = {method: cross_validated_log_loss(method, scores, labels) for method in METHODS}
    best = min(losses, key=losses.__getitem__)  # the first of equals
    return FITS[best](scores, labels, log_loss=losses)


def cross_validated_log_loss(method: str, scores: np.ndarray, labels: np.ndarray) -> float:
    """Log loss over all pairs, each with the probability of a map that was fitted on the other folds."""
    from sklearn.model_selection import StratifiedKFold

    probabilities = np.empty_like(scores)
    for fitted, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(scores, labels):
        probabilities[held_out] = FITS[method](scores[fitted], labels[fitted]).probabilities(scores[held_out])
    return probability_metrics(probabilities, labels)["log_loss"]


def fit_platt(scores: np.ndarray, labels: np.ndarray, **described) -> Platt:
    """Logistic regression on the score, with Platt's targets `(n1 + 1) / (n1 + 2)` and `1 / (n0 + 2)` for 1 and 0.

    They keep the slope finite where the scores separate the labels. A falling line is replaced by the best flat one.
    """
    from sklearn.linear_model import LogisticRegression

    ones = labels.sum()
    targets = np.where(labels == 1, (ones + 1) / (ones + 2), 1 / (len(labels) - ones + 2))
    center, spread = scores.mean(), scores.std()
    slope = 0.0
    if spread > 1e-9 * max(1.0, abs(center)):  # otherwise all are equal up to rounding
        standard = (scores - center) / spread
        line = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-8)
        line.fit(np.tile(standard, 2)[:, None], np.repeat((1, 0), len(scores)), np.concatenate((targets, 1 - targets)))
        slope, intercept = float(line.coef_[0, 0] / spread), float(line.intercept_[0])
    if slope <= 0:
        slope, intercept = 0.0, float(np.log(targets.sum() / (1 - targets).sum()))
    return Platt(pairs=len(scores), slope=slope, intercept=float(intercept - slope * center), **described)


def fit_isotonic(scores: np.ndarray, labels: np.ndarray, **described) -> Isotonic:
    """The rising curve of least squares, which is that of the least log loss too (Brümmer and du Preez 2013).

    One dissimilar pair with the highest score and one similar pair with the lowest are added: if the k highest scores
    are all those of similar pairs, the curve ends at `k / (k + 1)` and not at certainty.
    """
    from sklearn.isotonic import IsotonicRegression

    ends = (scores.max(), scores.min())
    curve = IsotonicRegression(increasing=True).fit(np.append(scores, ends), np.append(labels, (0.0, 1.0)))
    return Isotonic(
        pairs=len(scores), scores=curve.X_thresholds_.tolist(), fitted=curve.y_thresholds_.tolist(), **described
    )


FITS = {"platt": fit_platt, "isotonic": fit_isotonic}
