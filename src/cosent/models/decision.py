"""`DecisionRule`: threshold and probabilities of a model, from labelled validation pairs; stored in `decision.json`.

Three questions have three answers: whether a labelled pair is similar (`threshold`), how likely that is
(`calibration`), and whether two sentences of a file, most of which are unrelated, may be merged (`merge_threshold`).
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.encoders import local
from cosent.errors import InputError, once, reading
from cosent.evaluation.calibration import Calibration, Numbers, at_base_rate, fit_calibration
from cosent.models.prompts import described

DECISION_NAME = "decision.json"
JOINT = "all"  # name of the rule for all corpora that a model was trained on
MERGED_SHARE, MERGED_PRECISION = 0.1, 0.9  # see `find_merge_threshold`
FEW_PAIRS = 100  # fewer leave isotonic probabilities in a few steps

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecisionRule:
    """Thresholds and calibration from the validation split of a corpus.

    A pair just above the threshold may have a probability below 0.5: the threshold is where most verdicts were right on
    validation, the probability is the share of similar pairs around a score.

    Args:
        corpus: name of the corpus.
        threshold: least score of similar pairs, where most of the labelled ones are right.
        calibration: map from scores to probabilities; None if all labels were equal.
        prompts: texts in front of both sentences of the pairs that were scored.
        merge_threshold: see `find_merge_threshold`; None if no score is precise enough.
        base_rate: share of similar pairs where the rule is used; None for the share in `corpus`.
    """

    corpus: str
    threshold: float
    calibration: Calibration | None
    prompts: tuple[str, str] = ("", "")
    merge_threshold: float | None = None
    base_rate: float | None = None

    @classmethod
    def of(
        cls, corpus: str, scores: np.ndarray, labels: np.ndarray, prompts: tuple[str, str] = ("", "")
    ) -> "DecisionRule":
        """The rule of validation pairs with labels of 0 and 1."""
        from cosent.evaluation.metrics import can_rank, find_threshold  # loads datasets, and jobs only read rules

        ranks = can_rank(labels)
        return cls(
            corpus,
            find_threshold(scores, labels)[0],
            fit_calibration(scores, labels) if ranks else None,
            prompts,
            find_merge_threshold(scores, labels) if ranks else None,
        )

    def probabilities(self, scores: Numbers) -> np.ndarray:
        """Probability in float64 that each pair is similar, at the base rate; shape of `scores`."""
        assert self.calibration is not None
        probabilities = self.calibration.probabilities(scores)
        if self.base_rate is None or self.calibration.base_rate is None:
            return probabilities
        return at_base_rate(probabilities, self.calibration.base_rate, self.base_rate)

    def similar(self, scores: Numbers) -> np.ndarray:
        """Whether each score reaches the threshold, or with a base rate a probability of 0.5: bool."""
        if self.base_rate is not None:
            return self.probabilities(scores) >= 0.5
        return np.asarray(scores, dtype=np.float64) >= self.threshold

    def verdicts(self, scores: Numbers) -> list[str]:
        """`similar` or `not similar` for each score."""
        return ["similar" if similar else "not similar" for similar in self.similar(scores)]


def joint_rule(
    rules: dict[str, DecisionRule], scored: dict[str, tuple[np.ndarray, np.ndarray]]
) -> dict[str, DecisionRule]:
    """The rules, with `JOINT` for the pooled pairs of several corpora, if there are several.

    Args:
        scored: scores and labels `(pairs,)` by corpus; a corpus without a rule takes no part.
    """
    scored = {name: both for name, both in scored.items() if name in rules}
    if len(scored) < 2:
        return rules
    scores, labels = (np.concatenate(parts) for parts in zip(*scored.values(), strict=True))
    return rules | {JOINT: DecisionRule.of(JOINT, scores, labels, next(iter(rules.values())).prompts)}


def find_merge_threshold(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Least score from which on `MERGED_PRECISION` of the pairs are similar, if `MERGED_SHARE` of all pairs are.

    Labelled pairs are about half similar, the close pairs of a file mostly not. With s the share of similar pairs that
    reach a score, d the share of the others, one more of which is counted for what has not been seen, and p =
    `MERGED_SHARE`, the precision is `p * s / (p * s + (1 - p) * d)`. None if no score is that precise.
    """
    scores, labels = np.asarray(scores), np.asarray(labels)
    order = np.argsort(-scores, kind="stable")
    similar = np.cumsum(labels[order] == 1)
    dissimilar = np.arange(1, len(order) + 1) - similar
    reached = MERGED_SHARE * similar / similar[-1]
    wrong = (1 - MERGED_SHARE) * (dissimilar + 1) / (dissimilar[-1] + 1)
    last = np.append(np.diff(scores[order]) != 0, True)  # of equal scores, all or none are merged
    precise = np.flatnonzero(last & (reached >= MERGED_PRECISION * (reached + wrong)))
    return float(scores[order[precise[-1]]]) if len(precise) else None


def write_rules(folder: str | Path, rules: dict[str, DecisionRule]) -> None:
    """Writes the rules of a model by corpus; removes the rules of an earlier model if there are none."""
    file = Path(folder, DECISION_NAME)
    if not rules:
        return file.unlink(missing_ok=True)
    text = json.dumps({name: asdict(rule) for name, rule in rules.items()}, ensure_ascii=False, indent=1)
    write_atomically(file, text + "\n")


def decision_rules(model: str | Path) -> dict[str, DecisionRule]:
    """Rules of a model folder or an export by corpus; empty without labels of 0 and 1, see `cosent calibrate`."""
    file = local(model) / DECISION_NAME
    if not file.is_file():
        return {}
    with reading(file, advice="Make it again: cosent calibrate --output NEW."):
        rules = json.loads(file.read_text(encoding="utf-8"))
        for stored in rules.values():
            stored["calibration"] = stored["calibration"] and Calibration(**stored["calibration"])
            stored["prompts"] = tuple(stored["prompts"])
        return {name: DecisionRule(**stored) for name, stored in rules.items()}


def rule_for(model: str, prompts: tuple[str, str], corpus: str | None = None) -> tuple[DecisionRule | None, str]:
    """The rule of a model for pairs that it reads behind these prompts, and where there is none the reason.

    Args:
        model: folder, shipped model or Hub id.
        prompts: texts in front of the first and the second sentence, of a search in front of query and document.
        corpus: name of the rule; default: the rule of all corpora together, or the only one.

    Raises:
        InputError: the model has no rule for `corpus`.
    """
    rules = decision_rules(model)
    if corpus is not None and corpus not in rules:
        raise InputError(
            f"--corpus {corpus}: {model} has a rule for {' '.join(rules) or 'no corpus'}. Name another, or find one: "
            f"cosent calibrate --model {model} --corpus {corpus} --output NEW."
        )
    rule = rules.get(corpus or (next(iter(rules)) if len(rules) == 1 else JOINT))
    if rule is None and rules:
        return None, f"{model} has a rule for each of {', '.join(rules)}: choose one by --corpus"
    if rule is None:
        return None, f"{model} has no decision rule, which cosent calibrate finds on labels of 0 and 1"
    if rule.prompts != prompts:
        return None, f"the rule of {model} was found with {described(rule.prompts)}, not {described(prompts)}"
    if rule.calibration is not None and rule.calibration.pairs < FEW_PAIRS:
        once(
            logger.warning,
            f"Probabilities of {model} come from {rule.calibration.pairs} validation pairs and are coarse. Label more, "
            "then cosent calibrate.",
        )
    return rule, ""
