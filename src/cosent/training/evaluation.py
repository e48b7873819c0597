"""Evaluation on validation and test: metrics, decision rules, retrieval; and the check of the saved model by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cosent.errors import InputError, errors_only
from cosent.evaluation.metrics import can_rank, spearman_at_most
from cosent.evaluation.retrieval import mean_intervals
from cosent.models import load_model
from cosent.models.decision import DecisionRule, joint_rule
from cosent.record import (
    QUERIES_NAME,
    SCORES_NAME,
    Intervals,
    Metrics,
    Queries,
    QueryMetrics,
    Scores,
    save_queries,
    save_scores,
)
from cosent.training.corpora import RunCorpora
from cosent.training.global_batch import GlobalBatchTrainer, pair_metrics
from cosent.training.pairs import EvaluationSet

CHECKED_PAIRS = 32  # of a saved model
# Largest difference of their scores that is rounding, relative to the largest score: of a merged adapter on a CPU; of
# half precision in training, and of TensorFloat-32, there relative to at least 1, since logits near 0 round as others.
ROUNDING, HALF_PRECISION = 1e-4, 1e-1


@dataclass
class Evaluation:
    """Results at one point of the training, by corpus and split; decision rules by corpus.

    Args:
        intervals: of the retrieval metrics.
        rules: what validation decided.
        scores: labels and scores of the pairs.
        queries: digest of a retrieval task, and its metrics by query.
    """

    metrics: Metrics = field(default_factory=dict)
    intervals: Intervals = field(default_factory=dict)
    rules: dict[str, DecisionRule] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    queries: dict[str, dict[str, tuple[str, dict[str, np.ndarray]]]] = field(default_factory=dict)


def held_out_sets(trainer: GlobalBatchTrainer, corpora: RunCorpora) -> dict[str, dict[str, EvaluationSet]]:
    """The tokenised validation and test splits of all corpora; the first process fills the cache of the others."""
    with trainer.args.main_process_first(desc="tokenising"):
        return {
            name: {
                split: trainer.held_out[name]  # it selects the epoch
                if split == "validation" and name in trainer.held_out
                else trainer.evaluation_set(rows, f"{name} {split}", corpus.manifest)
                for split, rows in corpus.splits.items()
                if split != "train"
            }
            for name, corpus in corpora.by_name.items()
        }


def evaluate_splits(
    trainer: GlobalBatchTrainer, corpora: RunCorpora, sets: dict[str, dict[str, EvaluationSet]], final: bool
) -> Evaluation:
    """Evaluates every split; `final`, with intervals, and with a `DecisionRule` for labels of 0 and 1.

    A model that was trained on several such corpora also gets a rule named `JOINT`, from their validation pairs
    together.

    Accuracy and F1 of both splits use the threshold that is most accurate on validation, and only the test split has
    metrics of the calibration, since validation would flatter what was fitted on it.
    """
    result = Evaluation()
    for name, splits in sets.items():
        result.metrics[name] = {}
        outputs = {split: trainer.predict(pairs) for split, pairs in splits.items()}
        decides = final and corpora.by_name[name].manifest.label_kind == "binary"
        if decides and "validation" in outputs and can_rank(labels := outputs["validation"].label_ids):
            scores = outputs["validation"].predictions["scores"]
            result.rules[name] = DecisionRule.of(name, scores, labels, trainer.sides)
        rule = result.rules.get(name)
        for split, output in outputs.items():
            scores, labels = output.predictions["scores"], output.label_ids
            threshold, calibration = (None, None) if rule is None else (rule.threshold, rule.calibration)
            calibration = calibration if split == "test" else None
            metrics = pair_metrics(output.predictions, labels, threshold, calibration)
            intervals: dict[str, tuple[float, float]] = {}
            result.scores.setdefault(name, {})[split] = {"labels": labels, "scores": scores}
            if final and can_rank(labels):
                metrics["spearman_at_most"] = spearman_at_most(labels, scores)
            if (task := splits[split].task) is not None:
                values = output.predictions["queries"]
                result.queries.setdefault(name, {})[split] = (task.digest, values)
                metrics |= {key: float(np.mean(value)) for key, value in values.items()} | task.size
                intervals |= mean_intervals(values) if final else {}
            result.metrics[name][split] = metrics
            if intervals:
                result.intervals.setdefault(name, {})[split] = intervals
    validation = {
        name: (pairs["scores"], pairs["labels"])
        for name in (corpus.manifest.name for corpus in corpora.training)
        if name in result.rules and (pairs := result.scores[name]["validation"])
    }
    result.rules = joint_rule(result.rules, validation)
    return result


def check_saved(
    folder: str | Path, corpora: RunCorpora, trained: Evaluation, sides: tuple[str, str], exact: bool = True
) -> None:
    """Loads a saved model and compares its scores of some pairs with the scores of the trained model.

    Raises:
        InputError: they differ by more than rounding, which is larger unless training was `exact` in float32.
    """
    if not trained.scores:
        return
    rounding = ROUNDING if exact else HALF_PRECISION
    name, splits = next(iter(trained.scores.items()))
    split, arrays = next(iter(splits.items()))
    rows, expected = corpora.by_name[name].split(split)[:CHECKED_PAIRS], arrays["scores"][:CHECKED_PAIRS]
    with errors_only("cosent"):  # without the warnings about these sentences, which were logged before
        scores = load_model(str(folder)).similarity(rows["sentence1"], rows["sentence2"], prompt=list(sides))
    difference = np.abs(scores - expected).max() / np.abs(expected).max(initial=1e-12 if exact else 1.0)
    if not difference <= rounding:
        raise InputError(
            f"The saved model does not match the one in memory: its scores differ by {difference:.0e}, and rounding "
            f"explains {rounding:.0e}. Report it, with the command."
        )


def save_evaluations(
    folder: str | Path, before: Evaluation, after: Evaluation, groups: Mapping[str, np.ndarray]
) -> None:
    """Writes scores of all pairs, with `pair_groups` of test splits, and retrieval metrics of all queries."""
    scores: Scores = {
        corpus: {
            split: {
                "labels": start["labels"],
                "before": start["scores"],
                "after": after.scores[corpus][split]["scores"],
            }
            for split, start in splits.items()
        }
        for corpus, splits in before.scores.items()
    }
    for corpus, numbers in groups.items():
        scores[corpus]["test"]["groups"] = numbers
    queries: Queries = {
        corpus: {
            split: QueryMetrics(task, {"before": values, "after": after.queries[corpus][split][1]})
            for split, (task, values) in splits.items()
        }
        for corpus, splits in before.queries.items()
    }
    save_scores(Path(folder, SCORES_NAME), scores)
    if queries:
        save_queries(Path(folder, QUERIES_NAME), queries)
