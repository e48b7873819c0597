"""Evaluation on validation and test: metrics, decision rules, retrieval, the final table and its verdict."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from cosent.compute.distributed import rank
from cosent.data.corpus import Corpus
from cosent.data.groups import pair_groups
from cosent.evaluation.metrics import can_rank, find_threshold, spearman_at_most, too_few
from cosent.evaluation.retrieval import mean_intervals
from cosent.evaluation.significance import (
    independent,
    paired_interval,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.evaluation.similarity import overlaps
from cosent.models.auto import load_bi_encoder
from cosent.models.cache import teacher_vectors
from cosent.models.decision import DecisionRule, joint_rule
from cosent.record import (
    BEFORE,
    OVERLAP,
    QUERIES_NAME,
    SCORES_NAME,
    SHIPPED,
    SHORTFALL_METRICS,
    Changes,
    Intervals,
    Metrics,
    Queries,
    QueryMetrics,
    RunRecord,
    Scores,
    Shortfall,
    in_points,
    in_words,
    save_queries,
    save_scores,
)
from cosent.training.corpora import RunCorpora
from cosent.training.global_batch import GlobalBatchTrainer, pair_metrics
from cosent.training.pairs import EvaluationSet, tower_of

logger = logging.getLogger(__name__)

FLOORS = {"overlap": OVERLAP, "similar": SHIPPED}  # by name in records, the references of shortfalls
Floors = dict[str, dict[str, "Floor"]]
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
        """Adds the `joint_rule` of those of the corpora that have a rule."""
        pairs = {name: self.scores[name]["validation"] for name in names if name in self.rules}
        self.rules = joint_rule(self.rules, {name: (one["scores"], one["labels"]) for name, one in pairs.items()})

    def finds(self, corpus: str) -> bool:
        """Whether retrieval was measured on the validation split of a corpus."""
        return "recall_at_10" in self.metrics.get(corpus, {}).get("validation", {})


def held_out_sets(trainer: GlobalBatchTrainer, corpora: RunCorpora) -> dict[str, dict[str, EvaluationSet]]:
    """The tokenised validation and test splits of all corpora; the first process fills the cache of the others."""
    sets: dict[str, dict[str, EvaluationSet]] = {}
    with trainer.args.main_process_first(desc="tokenising"):
        for name, corpus in corpora.by_name.items():
            known = {"validation": trainer.held_out[name]} if name in trainer.held_out else {}  # it selects the epoch
            for split, rows in corpus.splits.items():
                if split != "train" and split not in known:
                    known[split] = trainer.tokenise(rows, f"{name} {split}", corpus.manifest)
            sets[name] = known
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
        result.intervals |= {name: known} if (known := {s: one for s, one in intervals.items() if one}) else {}
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


def final_table(record: RunRecord, rules: dict[str, DecisionRule]) -> list[str]:
    """Lines of the metrics before and after training, the floors and the ceiling of Spearman, and the verdict."""
    head = f"{'Spearman':<24}{'before':>8}{'after':>8}{'overlap':>9}{'similar':>9}{'at most':>9}"
    note = "(overlap: characters in common; similar: the shipped model; at most: given ties of labels)"
    lines = [f"{head}  {'change x100 [95%]':<22} {note}"]
    retrieval, calibrated = [], []
    for name, splits in record.after.items():
        rule = rules.get(name)
        for split, values in splits.items():
            title, before = f"{name + ' ' + split:<24}", record.before[name][split]
            lowest = record.floors.get(name, {}).get(split, {})
            floor = "".join(f"{lowest[key]:9.4f}" if key in lowest else " " * 9 for key in FLOORS)
            most = values.get("spearman_at_most", 1.0)
            change = record.changes.get(name, {}).get(split, {}).get("spearman")
            line = f"{title}{before['spearman']:8.4f}{values['spearman']:8.4f}{floor}"
            unknown = "nan" if math.isnan(values["spearman"] - before["spearman"]) else "too few separate pairs"
            line += f"{f'{most:.4f}' if most < 1 else '':>9}  {in_points(*change) if change else unknown:<22}"
            if "auc" in values:
                line += f" AUC {values['auc']:.4f}"
            if rule is not None:
                line += f", accuracy {values['accuracy']:.4f}, F1 {values['f1']:.4f} at {rule.threshold:.4f}"
                line += " (from validation)"
            if "perplexity" in values:
                line += f"   perplexity {before['perplexity']:.2f} -> {values['perplexity']:.2f}"
            lines.append(line.rstrip())
            intervals = record.intervals.get(name, {}).get(split, {})
            if "recall_at_10" in intervals:
                changes = (
                    f"  {before[key]:.4f} -> {values[key]:.4f} [{intervals[key][0]:.4f}, {intervals[key][1]:.4f}]"
                    for key in ("recall_at_1", "recall_at_10")
                )
                retrieval.append(f"{title}{values['queries']:8.0f}{values['pool']:8.0f}{''.join(changes)}")
        if rule is not None and rule.calibration is not None and "test" in splits:
            changes = (
                f"{what} {splits['test'][f'uncalibrated_{key}']:.4f} -> {splits['test'][key]:.4f}"
                for what, key in (("Brier", "brier"), ("calibration error", "calibration_error"))
            )
            calibrated.append(f"{name} test, scores -> probabilities ({rule.calibration.method}): {', '.join(changes)}")
    if retrieval:
        heads = (f"  {f'Recall@{k} before -> after [95%]':<34}" for k in (1, 10))
        retrieval.insert(0, f"{'Retrieval':<24}{'queries':>8}{'pool':>8}{''.join(heads)}".rstrip())
    return lines + calibrated + retrieval + [f"warning: {line}" for line in in_words(record.shortfalls) + record.tiny]


@dataclass(frozen=True)
class Floor:
    """Labels and `pair_groups` of the pairs of a split, and the scores of each of the `FLOORS` that was measured."""

    labels: np.ndarray
    groups: np.ndarray
    scores: dict[str, np.ndarray]


def floors_of(corpora: Iterable[Corpus], start: str, device: torch.device) -> Floors:
    """The floors of all held-out splits, by corpus and split, on the main process; all processes must call it.

    Without `similar` for a run that starts from it, whose metrics before training they are.
    """
    model = None if start == SHIPPED else load_bi_encoder(SHIPPED).to(device).eval()
    found: Floors = {}
    for corpus in corpora:
        for split, rows in corpus.splits.items():
            if split == "train":
                continue
            first, second = rows["sentence1"][:], rows["sentence2"][:]
            scores = {}
            if model is not None:
                vectors, places = teacher_vectors(model, first, second)  # through the cache on disk
                scores["similar"] = np.einsum("ij,ij->i", vectors[places[:, 0]], vectors[places[:, 1]])
            if rank() == 0:
                one = Floor(corpus.labels(split), pair_groups(rows), {"overlap": overlaps(first, second)} | scores)
                found.setdefault(corpus.manifest.name, {})[split] = one
    return found


def spearman_of_floors(floors: Floors) -> Metrics:
    """By corpus, split and floor; NaN in a split of a single label."""
    return {
        corpus: {
            split: {name: spearman(scores, one.labels) for name, scores in one.scores.items()}
            for split, one in splits.items()
        }
        for corpus, splits in floors.items()
    }


def tiny_splits(floors: Floors) -> list[str]:
    """A warning for each held-out split that is too small to judge a model by."""
    named = [(f"{corpus} {split}", one) for corpus, splits in floors.items() for split, one in splits.items()]
    return [warning for where, one in named if (warning := too_few(one.labels, where))]


def paired_changes(before: Evaluation, after: Evaluation, floors: Floors) -> Changes:
    """Differences on the same rows with their intervals, see `RunRecord.changes`.

    Pairs that share a sentence are drawn together. Tiny splits have no intervals.
    """
    changes: Changes = {}
    for name, splits in floors.items():
        for split, floor in splits.items():
            scores = {"after": after.scores[name][split]["scores"], "spearman": before.scores[name][split]["scores"]}
            measured = [moment.queries.get(name, {}).get(split) for moment in (after, before)]
            queries = [values["recall_at_10"] for _, values in filter(None, measured)]
            changes.setdefault(name, {})[split] = changes_of_split(
                split, floor.labels, floor.groups, scores | floor.scores, queries
            )
    return changes


def changes_of_split(
    split: str, labels: np.ndarray, groups: np.ndarray, scores: dict[str, np.ndarray], queries: list[np.ndarray]
) -> dict[str, tuple[float, float, float]]:
    """Differences of a split with their intervals, by metric.

    Args:
        groups: `pair_groups` of the rows.
        scores: of the pairs; the Spearman of the first is compared with each of the others, under the other's name.
        queries: Recall@10 of each query after and before training; empty where it was not measured.
    """
    gaps: dict[str, tuple[float, np.ndarray, float]] = {}
    if can_rank(labels) and not too_few(labels, split):
        methods = np.stack(list(scores.values()))
        drawn = resampled_spearman(methods, labels, RUN_RESAMPLES, groups=groups)
        values = [spearman(row, labels) for row in methods]
        for number, metric in list(enumerate(scores))[1:]:
            gaps[metric] = values[0] - values[number], drawn[:, 0] - drawn[:, number], independent(groups)
    if queries:
        drawn = resampled_means(np.stack(queries), RUN_RESAMPLES)
        gaps["recall_at_10"] = float(np.subtract(*queries).mean()), drawn[:, 0] - drawn[:, 1], len(queries[0])
    intervals = {metric: paired_interval(*gap) for metric, gap in gaps.items()}
    return {metric: interval for metric, interval in intervals.items() if interval is not None}


def warn_of_fall(
    trainer: GlobalBatchTrainer, corpus: Corpus, before: Evaluation, predictions: dict[str, np.ndarray | dict]
) -> None:
    """Warns, at the first validation of a training, about metrics that are clearly below those of the start."""
    rows, name = corpus.split("validation"), corpus.manifest.name
    scores = {"now": predictions["scores"], "spearman": before.scores[name]["validation"]["scores"]}
    measured = predictions.get("queries"), before.queries.get(name, {}).get("validation", (None, None))[1]
    queries = [values["recall_at_10"] for values in measured if values is not None]
    changes = changes_of_split("validation", corpus.labels("validation"), pair_groups(rows), scores, queries)
    falls = [f"{SHORTFALL_METRICS[key]} {in_points(*change)}" for key, change in changes.items() if change[2] < 0]
    if falls:
        logger.warning(
            "step %d: %s validation is below the start (change x100: %s). Stop, and train with a lower "
            "--learning_rate than %g.",
            *(trainer.state.global_step, name, ", ".join(falls), trainer.args.learning_rate),
        )


def shortfalls(record: RunRecord) -> list[Shortfall]:
    """Metrics that did not improve: Spearman not clearly above the start or a floor, or lower Recall@10.

    Without an interval of the difference, where it is not above them at all.
    """
    found = []
    for name, splits in record.after.items():
        for split, after in splits.items():
            before, known = record.before[name][split], record.changes.get(name, {}).get(split, {})
            lowest = record.floors.get(name, {}).get(split, {})
            for metric, than, reference, key in (
                ("spearman", BEFORE, before["spearman"], "spearman"),
                *(("spearman", than, lowest.get(key, math.nan), key) for key, than in FLOORS.items()),
                ("recall_at_10", BEFORE, before.get("recall_at_10", math.nan), "recall_at_10"),
            ):
                value, (low, high) = after.get(metric, math.nan), known[key][1:] if key in known else (None, None)
                better = value > reference and (low is None or low > 0)
                if not math.isnan(reference) and not (better if metric == "spearman" else value >= reference):
                    found.append(Shortfall(name, split, metric, value, than, reference, low, high, paired=True))
    return found
