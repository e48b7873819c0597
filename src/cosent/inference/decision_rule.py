"""What the scores of a trained model mean: the probability that a pair is similar, and a verdict."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.evaluation.calibration import Calibration, Numbers
from cosent.run import read_record


@dataclass(frozen=True)
class DecisionRule:
    """Threshold and map from scores to probabilities that training found on the validation split of a corpus.

    The two answer different questions, so a pair just above the threshold may have a probability below 0.5: the
    threshold is where most verdicts were right on validation, the probability is the share of similar pairs around a
    score.

    Args:
        prompts: texts in front of the first and the second sentence of the pairs that were scored.
    """

    corpus: str
    threshold: float
    calibration: Calibration
    prompts: tuple[str, str] = ("", "")

    def probabilities(self, scores: Numbers) -> np.ndarray:
        """Probability in float64 that each pair is similar, among pairs like those of `corpus`; shape of `scores`."""
        return self.calibration.probabilities(scores)

    def similar(self, scores: Numbers) -> np.ndarray:
        """Whether each score reaches the threshold: bool, shape of `scores`."""
        return np.asarray(scores, dtype=np.float64) >= self.threshold


def decision_rules(model: str | Path) -> dict[str, DecisionRule]:
    """The rules of a model folder by corpus; empty if it was not trained here on a corpus with labels of 0 and 1.

    Raises:
        InputError: a `run.json` that this version cannot read.
    """
    record = read_record(model)
    if record is None:
        return {}
    return {name: DecisionRule(name, record.thresholds[name], calibration, record.prompts)
            for name, calibration in record.calibrations.items()}  # fmt: skip
