"""Monotone maps from a similarity score to the probability that a pair is similar.

Training fits one on the validation split of every binary corpus (`calibration_fit`), and `run.json` keeps it next to
the threshold. Here it is read and applied, without scikit-learn.

A probability holds for pairs like those of that split, with its share of similar ones. It lies within `1 / (n + 2)` and
`1 - 1 / (n + 2)` for a map that was fitted on n pairs: no number of them that agree proves certainty, and the log loss
stays finite.
"""

from dataclasses import dataclass, field

import numpy as np

from cosent.evaluation.probability_metrics import probability_metrics

Numbers = np.ndarray | list[float]


def sigmoid(values: np.ndarray) -> np.ndarray:
    """`1 / (1 + exp(-values))` in float64, without overflow."""
    return np.exp(-np.logaddexp(0, -np.asarray(values, dtype=np.float64)))


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A fitted map; `probabilities` applies it.

    Args:
        pairs: number of pairs that it was fitted on.
        log_loss: cross-validated log loss of each method on them, by which the better one was chosen; empty for few
            pairs, see `calibration_fit`.
        method: key of `METHODS`, by which JSON tells them apart.
    """

    pairs: int
    log_loss: dict[str, float] = field(default_factory=dict)
    method: str = field(default="", init=False)

    def probabilities(self, scores: Numbers) -> np.ndarray:
        """Probability in float64 that each pair is similar, of the shape of `scores`; higher for higher scores."""
        least = 1 / (self.pairs + 2)
        return np.clip(self.curve(np.asarray(scores, dtype=np.float64)), least, 1 - least)

    def curve(self, scores: np.ndarray) -> np.ndarray:
        """Fitted probabilities of float64 scores, which may reach 0 and 1."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Platt(Calibration):
    """`sigmoid(slope * score + intercept)`; Platt 1999, Probabilistic Outputs for Support Vector Machines."""

    slope: float
    intercept: float
    method: str = field(default="platt", init=False)

    def curve(self, scores: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * scores + self.intercept)


@dataclass(frozen=True, kw_only=True)
class Isotonic(Calibration):
    """Linear between the points (score, fitted), constant beyond them; Zadrozny and Elkan 2002.

    Args:
        scores: strictly rising.
        fitted: probabilities at these scores, never falling.
    """

    scores: list[float]
    fitted: list[float]
    method: str = field(default="isotonic", init=False)

    def curve(self, scores: np.ndarray) -> np.ndarray:
        return np.interp(scores, self.scores, self.fitted)


METHODS: dict[str, type[Calibration]] = {"platt": Platt, "isotonic": Isotonic}


def calibration_from(saved: dict) -> Calibration:
    """The map from its fields, as JSON holds them.

    Raises:
        KeyError, TypeError: another method, or fields of another version.
    """
    return METHODS[saved["method"]](**{name: value for name, value in saved.items() if name != "method"})


def uncalibrated(scores: Numbers, tower: str) -> np.ndarray:
    """What is taken for a probability without a map: the cosine of a bi-encoder, cut to 0..1; else the sigmoid.

    The sigmoid of a cross-encoder's score is what serving tools return for one logit, and the softmax of two.
    """
    scores = np.asarray(scores, dtype=np.float64)
    return np.clip(scores, 0, 1) if tower == "bi_encoder" else sigmoid(scores)


def calibration_metrics(
    calibration: Calibration | None, scores: np.ndarray, labels: np.ndarray, tower: str
) -> dict[str, float]:
    """`probability_metrics` of scores as they are, named `uncalibrated_...`, and of their probabilities by the map."""
    raw = probability_metrics(uncalibrated(scores, tower), labels)
    metrics = {f"uncalibrated_{name}": value for name, value in raw.items()}
    if calibration is None:
        return metrics
    return metrics | probability_metrics(calibration.probabilities(scores), labels)
