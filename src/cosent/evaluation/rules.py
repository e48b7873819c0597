"""`DecisionRule`: threshold and calibration of a model, from labelled validation pairs.

Four questions have four answers: whether a labelled pair is similar (`threshold`), how likely that is (`calibration`),
whether two sentences of a file, most of which are unrelated, may be merged (`merge_threshold`), and whether a search
should answer a query at all (`answers`).
"""

from dataclasses import dataclass

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, Numbers, at_base_rate, fit_calibration

JOINT = "all"  # name of the rule for all corpora that a model was trained on
MERGED_SHARE, MERGED_PRECISION = 0.1, 0.9  # see `find_merge_threshold`


@dataclass(frozen=True)
class AnswerRule:
    """Answer if `best + lead * (best - second) >= threshold`, of the two highest cosines of a query."""

    lead: float
    threshold: float
    precision: float  # lower bound of the share of answers that are right, 95% sure
    answered: float  # share of the queries that had an answer and were given one
    queries: int  # that it was fitted on, each with and without its answers in the pool
    pool: int  # sentences that were searched: among many more of them, a wrong one comes closer

    def __str__(self) -> str:
        return (
            f"answers only if cosine + {self.lead:g} x lead >= {self.threshold:.4f}: at least {self.precision:.1%} "
            f"right and {self.answered:.1%} of answerable queries answered, on {self.queries:,} queries among "
            f"{self.pool:,} sentences, half of them without an answer"
        )

    def answers(self, best: np.ndarray | float, second: np.ndarray | float) -> np.ndarray | bool:
        """Whether each query is answered: bool of the shape of both."""
        return best + self.lead * (best - second) >= self.threshold


@dataclass(frozen=True)
class DecisionRule:
    """Thresholds and calibration from the validation split of a corpus.

    A pair just above the threshold may have a probability below 0.5: the threshold is where most verdicts were right on
    validation, the probability is the share of similar pairs around a score.

    Args:
        corpus: whose validation split it was.
        threshold: least score of similar pairs, where most of the labelled ones are right.
        calibration: map from scores to probabilities; None if all labels were equal.
        prompts: texts in front of both sentences of the pairs that were scored.
        merge_threshold: see `find_merge_threshold`; None if no score is precise enough.
        answers: rules for a search, by rising precision and falling share of answers; empty for a cross-encoder.
        base_rate: share of similar pairs where the rule is used; None for that of `corpus`.
    """

    corpus: str
    threshold: float
    calibration: Calibration | None
    prompts: tuple[str, str] = ("", "")
    merge_threshold: float | None = None
    answers: tuple[AnswerRule, ...] = ()
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

    def answering(self, precision: float) -> AnswerRule:
        """The rule that answers most queries among those whose precision is at least `precision`.

        Raises:
            InputError: no rule is that precise; it says what can be reached.
        """
        if not self.answers:
            raise InputError(
                f"There is no rule for --precision {precision:g} on {self.corpus}. Make one on pairs like your "
                "queries: cosent calibrate --model MODEL --corpus NAME."
            )
        best = self.answers[-1]
        if best.precision < precision:
            raise InputError(
                f"--precision {precision:g} is not reached on the {best.queries:,} queries of {self.corpus}: at most "
                f"{best.precision:.2f}, where {best.answered:.0%} of answerable queries are answered. Lower it, or "
                "calibrate on more pairs."
            )
        return next(rule for rule in self.answers if rule.precision >= precision)

    def similar(self, scores: Numbers) -> np.ndarray:
        """Whether each score reaches the threshold, or with a base rate a probability of 0.5: bool."""
        if self.base_rate is not None:
            return self.probabilities(scores) >= 0.5
        return np.asarray(scores, dtype=np.float64) >= self.threshold


def joint_rule(rules: dict[str, DecisionRule], scored: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict:
    """The rules, with `JOINT` for the pooled pairs of several corpora, if there are several."""
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
