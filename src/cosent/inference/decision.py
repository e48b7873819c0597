"""What the scores of a trained model mean: the probability that a pair is similar, and a verdict."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, Numbers
from cosent.models.prompts import described
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


@dataclass(frozen=True)
class Decision:
    """A threshold and a map from scores to probabilities, or None, and the source of each."""

    threshold: float | None
    threshold_from: str
    calibration: Calibration | None
    calibration_from: str

    @property
    def method(self) -> str | None:
        return None if self.calibration is None else self.calibration.method


def choose_decision(args, corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold from a flag, this corpus' validation split or the training of the model; the map from the last two.

    Args:
        args: the `EvaluateArguments`.
        prompts: those of both sentences; what training found with others means nothing here.

    Raises:
        InputError: a threshold is requested on labels that are not binary, or in two ways.
    """
    if args.find_threshold and args.threshold is not None:
        raise InputError("--threshold sets a threshold and --find_threshold searches for one. Give one of the two.")
    if args.threshold_grid is not None and not args.find_threshold:
        raise InputError("--threshold_grid is an option of --find_threshold. Add that flag, or leave both out.")
    name, record = corpus.manifest.name, read_record(args.model)
    if corpus.manifest.label_kind != "binary":
        if args.threshold is not None or args.find_threshold:
            raise InputError(f"{name} has {corpus.manifest.label_kind} labels: accuracy at a threshold needs 0 and 1.")
        return Decision(None, "none: the labels are not binary", None, "none: the labels are not binary")
    if args.find_threshold:
        return find_decision(args, corpus, model, prompts)
    trained = f"{name} validation, when the model was trained"
    fits = record is not None and record.prompts == prompts
    threshold = record.thresholds.get(name) if fits else None
    calibration = record.calibrations.get(name) if fits else None
    source = f"none: the model was not trained on {name}; --find_threshold or --threshold"
    missing = f"none: the model has none for {name}; --find_threshold fits one"
    if record is not None and not fits:
        source = f"none: the model was trained with {described(record.prompts)}; --find_threshold or --threshold"
        missing = f"none: the model was trained with {described(record.prompts)}; --find_threshold fits one"
    if args.threshold is not None:
        threshold, source = args.threshold, "--threshold"
    elif threshold is not None:
        source = trained
    return Decision(threshold, source, calibration, missing if calibration is None else trained)


def find_decision(args, corpus, model, prompts: tuple[str, str]) -> Decision:
    """The threshold and the map that fit the validation split of this corpus."""
    from cosent.evaluation.calibration import fit_calibration
    from cosent.evaluation.metrics import can_rank, find_threshold
    from cosent.inference.embedding import score
    from cosent.models.bi_encoder import Embedder

    if args.threshold_grid and not isinstance(model, Embedder):
        raise InputError("--threshold_grid divides 0..1; the logits of a cross-encoder have no bounds. Drop it.")
    source = f"{corpus.manifest.name} validation"
    scores, labels = score(model, corpus.split("validation"), args.batch_size, prompts), corpus.labels("validation")
    threshold = find_threshold(scores, labels, grid=args.threshold_grid)[0]
    if not can_rank(labels):
        return Decision(threshold, source, None, "none: all labels of the validation split are equal")
    return Decision(threshold, source, fit_calibration(scores, labels), source)
