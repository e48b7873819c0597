"""The verdict on a training: floors, paired changes, warnings about metrics that did not improve, the final table."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cosent.compute.distributed import rank
from cosent.data.corpus import Corpus, pair_groups
from cosent.evaluation.metrics import can_rank, too_few
from cosent.evaluation.significance import (
    independent,
    paired_interval,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.evaluation.similarity import overlaps
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import pair_scores, pair_vectors
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import DecisionRule
from cosent.record import OVERLAP, RunRecord
from cosent.training.evaluation import Evaluation
from cosent.training.global_batch import GlobalBatchTrainer

logger = logging.getLogger(__name__)

RUN_RESAMPLES = 500  # of the pairs or queries for an interval of a run
SIMILAR = "similar"  # the floor, and the shipped model
TEACHER = "teacher"  # of a student, next to the floors
COMPARISONS = {  # by name in `RunRecord.changes`: a metric, and what it is compared with
    "spearman": ("Spearman", "its value before training"),
    OVERLAP: ("Spearman", "character overlap"),
    SIMILAR: ("Spearman", "the shipped model `similar`"),
    "recall_at_10": ("Recall@10", "its value before training"),
}


@dataclass(frozen=True)
class Floor:
    """Labels and `pair_groups` of a split, and the scores of character overlap, `similar` and a teacher, by name."""

    labels: np.ndarray
    groups: np.ndarray
    scores: dict[str, np.ndarray]


Floors = dict[str, dict[str, Floor]]  # by corpus and split


def floors_of(corpora: Iterable[Corpus], recipe: dict[str, Any], device: torch.device) -> Floors:
    """The floors of all held-out splits, by corpus and split, on the main process; all processes must call it.

    Includes the teacher of a run. A run that starts from `similar` has its scores before training instead.
    """
    models: dict[str, tuple[SentenceEncoder | CrossEncoder, list[str] | None]] = {}
    if recipe["model_name_or_path"] != SIMILAR:
        models[SIMILAR] = load_model(SIMILAR), None
    if recipe.get("teacher") is not None:
        models[TEACHER] = load_model(recipe["teacher"]), recipe.get("teacher_prompt")
    floors: Floors = {}
    for corpus in corpora:
        for split, rows in corpus.splits.items():
            if split == "train":
                continue
            sides = rows["sentence1"][:], rows["sentence2"][:]
            scores = {
                name: cached_scores(model.to(device).eval(), *sides, prompt=prompt)
                for name, (model, prompt) in models.items()
            }
            if rank() == 0:
                floor = Floor(corpus.labels(split), pair_groups(rows), {OVERLAP: overlaps(*sides)} | scores)
                floors.setdefault(corpus.manifest.name, {})[split] = floor
    return floors


def cached_scores(
    model: SentenceEncoder | CrossEncoder, first: list[str], second: list[str], prompt: list[str] | None
) -> np.ndarray:
    """Scores of pairs by a model that is not trained, through the cache on disk."""
    if not isinstance(model, SentenceEncoder):
        return pair_scores(model, first, second, prompt=prompt)
    vectors, places = pair_vectors(model, first, second, prompt=prompt)
    return np.einsum("ij,ij->i", vectors[places[:, 0]], vectors[places[:, 1]])


def judge(record: RunRecord, before: Evaluation, after: Evaluation, floors: Floors) -> None:
    """Adds the floors, the paired changes and the warnings to the record of a run."""
    small_splits = []
    for corpus, splits in floors.items():
        record.floors[corpus], record.changes[corpus] = {}, {}
        for split, floor in splits.items():
            spearman_of = {name: spearman(scores, floor.labels) for name, scores in floor.scores.items()}
            record.floors[corpus][split] = spearman_of  # NaN in a split of a single label
            record.changes[corpus][split] = paired_changes(before, after, floor, corpus, split)
            if (warning := too_few(floor.labels, f"{corpus} {split}")) is not None:
                small_splits.append(warning)
    record.warnings = warnings_of(record) + small_splits


def paired_changes(
    before: Evaluation, after: Evaluation, floor: Floor, corpus: str, split: str
) -> dict[str, tuple[float, float, float]]:
    """Differences on the same rows with their intervals, see `RunRecord.changes`.

    Pairs that share a sentence are drawn together. A tiny split has no intervals.
    """
    gaps: dict[str, tuple[float, np.ndarray, float]] = {}
    labels, groups = floor.labels, floor.groups
    if can_rank(labels) and not too_few(labels, split):
        methods = {"after": after.scores[corpus][split]["scores"], "spearman": before.scores[corpus][split]["scores"]}
        methods |= floor.scores
        drawn = resampled_spearman(np.stack(list(methods.values())), labels, RUN_RESAMPLES, groups=groups)
        values = [spearman(scores, labels) for scores in methods.values()]
        for number, metric in list(enumerate(methods))[1:]:
            gaps[metric] = values[0] - values[number], drawn[:, 0] - drawn[:, number], independent(groups)
    queries = [
        moment.queries[corpus][split][1] for moment in (after, before) if split in moment.queries.get(corpus, {})
    ]
    if queries:
        recalls = np.stack([metrics["recall_at_10"] for metrics in queries])  # (2, queries), after and before
        drawn = resampled_means(recalls, RUN_RESAMPLES)
        gaps["recall_at_10"] = float((recalls[0] - recalls[1]).mean()), drawn[:, 0] - drawn[:, 1], recalls.shape[1]
    return {metric: interval for metric, gap in gaps.items() if (interval := paired_interval(*gap)) is not None}


def warn_of_fall(trainer: GlobalBatchTrainer, corpus: Corpus, before: Evaluation, predictions: dict[str, Any]) -> None:
    """Warns at the first validation of a training about metrics clearly below the start."""
    name = corpus.manifest.name
    queries = {name: {"validation": ("", predictions["queries"])}} if "queries" in predictions else {}
    now = Evaluation(scores={name: {"validation": {"scores": predictions["scores"]}}}, queries=queries)
    floor = Floor(corpus.labels("validation"), pair_groups(corpus.split("validation")), {})
    changes = paired_changes(before, now, floor, name, "validation")
    falls = [f"{COMPARISONS[key][0]} {in_points(*change)}" for key, change in changes.items() if change[2] < 0]
    if falls:
        logger.warning(
            "step %d: %s validation is below the start (change x100: %s). Stop, and train with a lower "
            "--learning_rate than %g.",
            *(trainer.state.global_step, name, ", ".join(falls), trainer.args.learning_rate),
        )


def warnings_of(record: RunRecord) -> list[str]:
    """Metrics that did not improve, see `faults_of`, in all held-out splits."""
    return [
        f"{corpus} {split}: {fault}."
        for corpus, splits in record.after.items()
        for split in splits
        for fault in faults_of(record, corpus, split).values()
    ]


def faults_of(record: RunRecord, corpus: str, split: str) -> dict[str, str]:
    """Comparisons of a split with Spearman not clearly above the start or a floor, or a lower Recall@10."""
    after, before = record.after[corpus][split], record.before[corpus][split]
    floors, changes = record.floors.get(corpus, {}).get(split, {}), record.changes.get(corpus, {}).get(split, {})
    most = after.get("spearman_at_most", 1.0)  # of scores that differ; where they are tied, as overlap, it is higher
    lower = {name: value for name, value in floors.items() if name != TEACHER and not value > most}
    references = {"spearman": before["spearman"]} | lower
    comparisons = [(name, after["spearman"], reference) for name, reference in references.items()]
    if after.get("recall_at_10", math.inf) < before.get("recall_at_10", -math.inf):
        comparisons.append(("recall_at_10", after["recall_at_10"], before["recall_at_10"]))
    faults = {}
    for name, value, reference in comparisons:
        change = changes.get(name)  # without one, any higher value is above
        low, high = (math.nan, math.nan) if change is None else change[1:]
        if math.isnan(reference) or (value > reference and not low <= 0):
            continue
        metric, than = COMPARISONS[name]
        relation = "below" if high < 0 else "not clearly above"
        interval = "too few pairs for an interval" if change is None else in_points(*change)
        faults[name] = f"{metric} is {relation} {than}: {reference:.4f} -> {value:.4f} ({interval})"
    return faults


def in_vain(record: RunRecord) -> bool:
    """Whether Spearman has not clearly improved on any corpus, by `faults_of` its last split."""
    faults = [faults_of(record, name, list(splits)[-1]) for name, splits in record.after.items() if splits]
    return bool(faults) and all(fault.keys() - {"recall_at_10"} for fault in faults)


def in_points(difference: float, low: float, high: float) -> str:
    """A difference and its interval, x100."""
    return f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def final_table(record: RunRecord, rules: dict[str, DecisionRule]) -> list[str]:
    """Lines of the metrics before and after training, with the floors and the ceiling of Spearman."""
    if not record.after:
        return ["not measured: name --eval_corpora with labels, e.g. lcqmc"]
    columns = [OVERLAP, SIMILAR, *([TEACHER] if record.recipe.get("teacher") else [])]
    head = f"{'Spearman':<24}{'before':>8}{'after':>8}{''.join(f'{name:>9}' for name in columns)}{'at most':>9}"
    note = "(overlap: characters in common; similar: the shipped model; at most: given ties of labels)"
    lines, retrieval = [f"{head}  {'change x100 [95%]':<22} {note}"], []
    for name, splits in record.after.items():
        for split, after in splits.items():
            title, before = f"{name + ' ' + split:<24}", record.before.get(name, {}).get(split, {"spearman": math.nan})
            floors = record.floors.get(name, {}).get(split, {})
            at_most = after.get("spearman_at_most")
            numbers = [*(floors.get(column) for column in columns), None if at_most == 1 else at_most]
            cells = "".join(" " * 9 if number is None else f"{number:9.4f}" for number in numbers)
            unknown = "nan" if math.isnan(after["spearman"] - before["spearman"]) else "too few separate pairs"
            change = record.changes.get(name, {}).get(split, {}).get("spearman")
            line = f"{title}{before['spearman']:8.4f}{after['spearman']:8.4f}{cells}"
            line += f"  {in_points(*change) if change else unknown:<22}"
            if "auc" in after:
                line += f" AUC {after['auc']:.4f}"
            if name in rules and "accuracy" in after:
                line += f", accuracy {after['accuracy']:.4f}, F1 {after['f1']:.4f} at {rules[name].threshold:.4f}"
                line += " (from validation)"
            if "perplexity" in after:
                line += f"   perplexity {before['perplexity']:.2f} -> {after['perplexity']:.2f}"
            lines.append(line.rstrip())
            intervals = record.intervals.get(name, {}).get(split, {})
            if "recall_at_10" in intervals:
                changes = (
                    f"  {before[key]:.4f} -> {after[key]:.4f} [{intervals[key][0]:.4f}, {intervals[key][1]:.4f}]"
                    for key in ("recall_at_1", "recall_at_10")
                )
                retrieval.append(f"{title}{after['queries']:8.0f}{after['pool']:8.0f}{''.join(changes)}")
    if retrieval:
        heads = (f"  {f'Recall@{k} before -> after [95%]':<34}" for k in (1, 10))
        retrieval.insert(0, f"{'Retrieval':<24}{'queries':>8}{'pool':>8}{''.join(heads)}".rstrip())
    return lines + retrieval
