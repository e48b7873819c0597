"""Evaluation on validation and test: metrics, decision rules, retrieval."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cosent.evaluation.metrics import can_rank, find_threshold, spearman_at_most, too_few
from cosent.evaluation.retrieval import mean_intervals
from cosent.evaluation.significance import (
    resampled_spearman,
)
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
from cosent.training.pairs import EvaluationSet, tower_of

logger = logging.getLogger(__name__)

RUN_RESAMPLES = 500  # of the pairs or queries for an interval of a run


@dataclass
class Evaluation:
    """Results at one point of the training, by corpus and split; decision rules by corpus.

    Args:
        intervals: of Spearman and the retrieval metrics.
        rules: what validation decided.
        scores: labels and scores of the pairs.
        queries: digest of a retrieval task, and its metrics by query.
    """

    metrics: Metrics = field(default_factory=dict)
    intervals: Intervals = field(default_factory=dict)
    rules: dict[str, DecisionRule] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    queries: dict[str, dict[str, tuple[str, dict[str, np.ndarray]]]] = field(default_factory=dict)

    def decide_jointly(self, names: Iterable[str]) -> None:
        """Adds the `joint_rule` of all named corpora with a rule."""
        pairs = {name: self.scores[name]["validation"] for name in names if name in self.rules}
        self.rules = joint_rule(self.rules, {name: (split["scores"], split["labels"]) for name, split in pairs.items()})

    def finds(self, corpus: str) -> bool:
        """Whether retrieval was measured on the validation split of a corpus."""
        return "recall_at_10" in self.metrics.get(corpus, {}).get("validation", {})


def held_out_sets(trainer: GlobalBatchTrainer, corpora: RunCorpora) -> dict[str, dict[str, EvaluationSet]]:
    """The tokenised validation and test splits of all corpora; the first process fills the cache of the others."""
    sets: dict[str, dict[str, EvaluationSet]] = {}
    with trainer.args.main_process_first(desc="tokenising"):
        for name, corpus in corpora.by_name.items():
            evaluated = (
                {"validation": trainer.held_out[name]} if name in trainer.held_out else {}
            )  # it selects the epoch
            for split, rows in corpus.splits.items():
                if split != "train" and split not in evaluated:
                    evaluated[split] = trainer.evaluation_set(rows, f"{name} {split}", corpus.manifest)
            sets[name] = evaluated
    return sets


def evaluate_splits(
    trainer: GlobalBatchTrainer, corpora: RunCorpora, sets: dict[str, dict[str, EvaluationSet]], final: bool
) -> Evaluation:
    """Evaluates every split; `final`, with intervals, and with a `DecisionRule` for labels of 0 and 1.

    A model that was trained on several such corpora also gets a rule named `JOINT`, from their validation pairs
    together.

    Accuracy and F1 of both splits use the threshold that is most accurate on validation. For comparison with projects
    that choose it on test, the test split also has `oracle_threshold` and `oracle_accuracy`, which no deployed model
    could reach. Validation would flatter the calibration fitted on it, so only the test split has its metrics.
    """
    result = Evaluation()
    for name, splits in sets.items():
        outputs = {split: trainer.predict(pairs) for split, pairs in splits.items()}
        scored = {split: (output.predictions["scores"], output.label_ids) for split, output in outputs.items()}
        binary = corpora.by_name[name].manifest.label_kind == "binary"
        decided = [split for split, (_, labels) in scored.items() if final and binary and can_rank(labels)]
        tower = None
        if "validation" in decided:
            tower = tower_of(trainer.encoder)
            result.rules[name] = DecisionRule.of(name, *scored["validation"], trainer.prefixes)
        metrics = {
            split: pair_metrics(
                output.predictions, output.label_ids, result.rules.get(name), tower if split == "test" else None
            )
            for split, output in outputs.items()
        }
        intervals: dict[str, dict] = {split: {} for split in outputs}
        for split, (scores, labels) in scored.items():
            result.scores.setdefault(name, {})[split] = {"labels": labels, "scores": scores}
            if final and can_rank(labels):
                metrics[split]["spearman_at_most"] = spearman_at_most(labels, scores)
            if final and can_rank(labels) and can_rank(scores) and not too_few(labels, split):
                low, high = np.nanpercentile(resampled_spearman(scores, labels, RUN_RESAMPLES), (2.5, 97.5))
                intervals[split]["spearman"] = float(low), float(high)
            if (retrieval := splits[split].retrieval) is not None:
                values = outputs[split].predictions["queries"]
                result.queries.setdefault(name, {})[split] = (retrieval.task.digest, values)
                metrics[split] |= {key: float(np.mean(value)) for key, value in values.items()} | retrieval.task.size
                intervals[split] |= mean_intervals(values) if final else {}
        if "test" in decided:
            best = find_threshold(*scored["test"])
            metrics["test"] |= {"oracle_threshold": best[0], "oracle_accuracy": best[1]}
        result.metrics[name] = metrics
        if any(intervals.values()):
            result.intervals[name] = {split: ends for split, ends in intervals.items() if ends}
    result.decide_jointly(corpus.manifest.name for corpus in corpora.training)
    return result


def save_evaluations(folder: str | Path, before: Evaluation, after: Evaluation) -> None:
    """Writes the scores of all pairs and the retrieval metrics of all queries, before and after training."""
    scores: Scores = {
        corpus: {
            split: {name: values for name, values in start.items() if name != "scores"}
            | {"before": start["scores"], "after": after.scores[corpus][split]["scores"]}
            for split, start in splits.items()
        }
        for corpus, splits in before.scores.items()
    }
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
