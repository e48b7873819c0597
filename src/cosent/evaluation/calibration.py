"""Calibration: thresholds, monotone maps from scores to probabilities, and metrics of these probabilities.

Training fits a map on the validation split of every binary corpus: Platt's or an isotonic one, whichever has the lower
log loss cross-validated over `FOLDS` folds of the split (on the pairs it was fitted on, the isotonic map nearly always
wins). `DecisionRule` keeps it next to the threshold. Reading and applying one needs no scikit-learn.

A probability holds for pairs drawn like the split, with the same share of similar ones. It lies within `1 / (n + 2)`
and `1 - 1 / (n + 2)` for a map fitted on n pairs: no number of pairs that agree proves certainty, and the log loss
stays finite.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

BINS = 15
LEAST = 1e-7  # of float32, in which models compute: a probability of 0 or 1 counts as this far from it
FOLDS = 5
SCARCE = 2 * FOLDS  # pairs of a label; with fewer, folds decide nothing, and Platt scaling is used

Numbers = np.ndarray | Sequence[float]


def probability_metrics(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """`brier`, `log_loss` and `calibration_error` of probabilities `(pairs,)` against labels of 0 and 1.

    `brier` is the mean of `(p - y)^2`; `log_loss` the mean of `-log(p if y = 1 else 1 - p)`, natural;
    `calibration_error` the expected one: `sum over BINS bins of |mean p - share of y = 1| * share of the pairs`.

    Source: Brier 1950; Naeini et al. 2015 and Guo et al. 2017 (https://arxiv.org/abs/1706.04599), with the probability
    of the label 1 in place of the confidence in the predicted class.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    valid = ((p >= 0) & (p <= 1)).all() and np.isin(y, (0, 1)).all()
    if not valid or p.ndim != 1 or p.shape != y.shape or not len(p):
        raise ValueError("Expected probabilities within 0..1 and labels of 0 and 1, a pair or more, of one shape.")
    clipped = np.clip(p, LEAST, 1 - LEAST)
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    excess = np.bincount(bins, weights=p - y, minlength=BINS)  # of probability over similar pairs, by bin
    return {
        "brier": float(np.mean((p - y) ** 2)),
        "log_loss": float(-np.mean(np.log(np.where(y == 1, clipped, 1 - clipped)))),
        "calibration_error": float(np.abs(excess).sum() / len(p)),
    }


def sigmoid(values: np.ndarray) -> np.ndarray:
    """`1 / (1 + exp(-values))` in float64, without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(values, dtype=np.float64)))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A fitted map that never falls; `probabilities` applies it.

    `platt`: `sigmoid(slope * score + intercept)` (Platt 1999, Probabilistic Outputs for Support Vector Machines).
    `isotonic`: linear between the rising points (score, fitted), constant beyond them (Zadrozny and Elkan 2002).
    """

    method: str
    pairs: int  # that it was fitted on
    base_rate: float | None = None  # share of similar ones among them; None if it was not kept
    log_loss: dict[str, float] = field(default_factory=dict)  # cross-validated, by method; empty for few pairs
    slope: float = 0.0
    intercept: float = 0.0
    scores: list[float] = field(default_factory=list)
    fitted: list[float] = field(default_factory=list)

    def __post_init__(self):
        if self.method not in FITS:
            raise ValueError(f"The calibration is {self.method!r}, and none of {', '.join(FITS)}. Fit it again.")

    def probabilities(self, scores: Numbers) -> np.ndarray:
        """Probability in float64 that each pair is similar, of the shape of `scores`; higher for higher scores."""
        scores, least = np.asarray(scores, dtype=np.float64), 1 / (self.pairs + 2)
        if self.method == "isotonic":
            return np.clip(np.interp(scores, self.scores, self.fitted), least, 1 - least)
        return np.clip(sigmoid(self.slope * scores + self.intercept), least, 1 - least)


def at_base_rate(probabilities: np.ndarray, fitted: float, expected: float) -> np.ndarray:
    """Probabilities for pairs with another share of similar ones: `p * a / (p * a + (1 - p) * b)`.

    With `a = expected / fitted` and `b = (1 - expected) / (1 - fitted)`, shares of similar pairs. Exact if only these
    have changed, and not the scores of similar pairs or of the others.

    Source: Saerens, Latinne and Decaestecker 2002, Adjusting the Outputs of a Classifier to New a Priori Probabilities.
    """
    similar = probabilities * expected / fitted
    return similar / (similar + (1 - probabilities) * (1 - expected) / (1 - fitted))


def fit_calibration(scores: np.ndarray, labels: np.ndarray) -> Calibration:
    """The map of the method with the lower cross-validated log loss; Platt's on a tie, or with few pairs of a label.

    Scores are any finite numbers `(pairs,)`, labels 0 and 1, both present. A map never falls: for scores that are all
    equal, or higher for dissimilar pairs, it is the share of similar pairs.
    """
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if not np.array_equal(np.unique(labels), (0, 1)):
        raise ValueError(f"Expected labels of 0 and 1, both of them, got {np.unique(labels)[:5]}.")
    if np.bincount(labels.astype(int)).min() < SCARCE:
        return FITS["platt"](scores, labels)
    losses = {method: cross_validated_log_loss(method, scores, labels) for method in FITS}
    best = min(losses, key=losses.__getitem__)  # the first of equals
    return FITS[best](scores, labels, log_loss=losses)


def cross_validated_log_loss(method: str, scores: np.ndarray, labels: np.ndarray) -> float:
    """Log loss over all pairs, each with the probability of a map that was fitted on the other folds."""
    from sklearn.model_selection import StratifiedKFold

    probabilities = np.empty_like(scores)
    for fitted, held_out in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(scores, labels):
        probabilities[held_out] = FITS[method](scores[fitted], labels[fitted]).probabilities(scores[held_out])
    return probability_metrics(probabilities, labels)["log_loss"]


def fit_platt(scores: np.ndarray, labels: np.ndarray, **described) -> Calibration:
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
    described |= {"pairs": len(scores), "base_rate": float(labels.mean())}
    return Calibration(method="platt", slope=slope, intercept=float(intercept - slope * center), **described)


def fit_isotonic(scores: np.ndarray, labels: np.ndarray, **described) -> Calibration:
    """The rising curve of least squares, which also has the least log loss (Brümmer and du Preez 2013).

    One dissimilar pair with the highest score and one similar pair with the lowest are added: if the k highest scores
    belong to similar pairs, the curve ends at `k / (k + 1)` and not at certainty.
    """
    from sklearn.isotonic import IsotonicRegression

    ends = (scores.max(), scores.min())
    curve = IsotonicRegression(increasing=True).fit(np.append(scores, ends), np.append(labels, (0.0, 1.0)))
    described |= {"pairs": len(scores), "base_rate": float(labels.mean())}
    return Calibration(
        method="isotonic", scores=curve.X_thresholds_.tolist(), fitted=curve.y_thresholds_.tolist(), **described
    )


FITS = {"platt": fit_platt, "isotonic": fit_isotonic}
