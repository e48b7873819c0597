"""Evaluate on the validation and test splits: metrics, thresholds, calibrations, and the table of them."""

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import datasets
import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.pairs import PairDataset, Prefixes
from cosent.data.retrieval import RetrievalArguments, RetrievalTask, retrieval_task
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, calibration_metrics, fit_calibration
from cosent.evaluation.metrics import SimilarityMetrics, can_rank, find_threshold
from cosent.evaluation.retrieval import METRICS, mean_intervals
from cosent.evaluation.significance import resampled_spearman
from cosent.evaluation.similarity import overlap_spearman
from cosent.inference.neighbours import unit
from cosent.models.bi_encoder import TextModel
from cosent.run import (
    BEFORE,
    OVERLAP,
    Intervals,
    Metrics,
    Queries,
    QueryMetrics,
    RunRecord,
    Scores,
    Shortfall,
    in_words,
)
from cosent.training.arguments import PairTrainingArguments
from cosent.training.trainer import PairTrainer

logger = logging.getLogger(__name__)

RESAMPLES = 500  # of the pairs for an interval of Spearman
HeldOut = dict[str, dict[str, PairDataset]]  # by corpus and split


@dataclass
class Evaluation:
    """Metrics by corpus and split, and after training the intervals of Spearman and the retrieval metrics.

    Thresholds and maps to probabilities by corpus, found on validation.
    """

    metrics: Metrics = field(default_factory=dict)
    intervals: Intervals = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)


def validation_sets(
    held: HeldOut, names: list[str], metric: str | None = "spearman"
) -> PairDataset | dict[str, PairDataset] | None:
    """Evaluation sets of Trainer: one set, or a dict whose mean metric selects the best epoch.

    Args:
        names: corpora for selection; those whose validation split cannot select are left out.
        metric: the metric that selects, see `can_select`.
    """
    sets = {name: held[name]["validation"] for name in names if "validation" in held[name]}
    sets = {name: data for name, data in sets.items() if can_select(data.labels, metric)}
    return next(iter(sets.values()), None) if len(sets) < 2 else sets


def metric_prefixes(sets: PairDataset | dict[str, PairDataset] | None, held: HeldOut) -> dict[str, str]:
    """Corpora by the prefix of their metrics in Trainer's log: `eval` alone, or `eval_CORPUS` each.

    Args:
        sets: result of `validation_sets`.
    """
    if isinstance(sets, dict):
        return {f"eval_{name}": name for name in sets}
    names = [name for name, splits in held.items() if sets is not None and splits.get("validation") is sets]
    return dict(zip(["eval"], names, strict=False))


def can_select(labels: np.ndarray, metric: str | None) -> bool:
    """Whether a metric can tell epochs apart: retrieval also on similar pairs alone, others need two labels."""
    return metric in METRICS or can_rank(labels)


def evaluate_splits(
    trainer: PairTrainer, held: HeldOut, tower: str, binary: list[str], kept: Scores, queries: Queries, moment: str
) -> Evaluation:
    """Evaluates every split, and finds thresholds and calibrations on validation for the corpora in `binary`.

    Accuracy and F1 of both splits use the threshold that is most accurate on validation. For comparison with projects
    that choose it on test, the test split also has `oracle_threshold` and `oracle_accuracy`, which no deployed model
    could reach; and, as validation would flatter the map that was fitted on it, only the test split has
    `calibration_metrics`. Labels are added to `kept`, scores to it and retrieval metrics of queries to `queries` by the
    name of `moment`; before training also the distances |u - v| of the test pairs of a bi-encoder: kexue.fm 8847
    explains with them why Sentence-BERT's head works.
    """
    found = Evaluation()
    for name, splits in held.items():
        predicted = {split: trainer.predict(data) for split, data in splits.items()}
        scored = {split: (output.predictions["scores"], output.label_ids) for split, output in predicted.items()}
        rankable = [split for split, (_, labels) in scored.items() if name in binary and can_rank(labels)]
        if "validation" in rankable:
            found.thresholds[name] = find_threshold(*scored["validation"])[0]
            found.calibrations[name] = fit_calibration(*scored["validation"])
        threshold = found.thresholds.get(name)
        found.metrics[name] = {
            split: SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
            for split, (scores, labels) in scored.items()
        }
        for split, data in splits.items():
            if data.retrieval is not None:
                task, values = data.retrieval.task, predicted[split].predictions["queries"]
                queries.setdefault(name, {}).setdefault(split, QueryMetrics(task.digest)).moments[moment] = values
                found.metrics[name][split] |= {key: float(np.mean(value)) for key, value in values.items()} | task.size
                if moment == "after":
                    found.intervals.setdefault(name, {})[split] = mean_intervals(values)
        for split, (scores, labels) in scored.items():
            if moment == "after" and (interval := spearman_interval(scores, labels)):
                found.intervals.setdefault(name, {}).setdefault(split, {})["spearman"] = interval
            kept.setdefault(name, {}).setdefault(split, {"labels": labels})[moment] = scores
        if moment == "before" and "test" in predicted and "distances" in predicted["test"].predictions:
            kept[name]["test"]["distances"] = predicted["test"].predictions["distances"]
        if "test" in rankable:
            oracle = find_threshold(*scored["test"])
            found.metrics[name]["test"] |= {"oracle_threshold": oracle[0], "oracle_accuracy": oracle[1]}
        if name in found.calibrations and "test" in scored:
            found.metrics[name]["test"] |= calibration_metrics(found.calibrations[name], *scored["test"], tower)
    return found


def spearman_interval(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float] | None:
    """95% bootstrap interval of Spearman over pairs; None where scores or labels are all equal."""
    if not (can_rank(labels) and can_rank(scores)):
        return None
    low, high = np.nanpercentile(resampled_spearman(scores, labels, RESAMPLES), (2.5, 97.5))
    return float(low), float(high)


def table(floor: Metrics, before: Metrics, found: Evaluation) -> str:
    """Spearman before and after training, and its floor; accuracy and calibration as found on validation."""
    lines = [f"{'Spearman':<24}{'before':>8}{'after':>8}{'floor':>8}   (floor: characters in common, without a model)"]
    for name, splits in found.metrics.items():
        threshold = found.thresholds.get(name)
        for split, values in splits.items():
            lowest = floor.get(name, {}).get(split, {}).get("spearman", float("nan"))
            line = f"{name + ' ' + split:<24}{before[name][split]['spearman']:8.4f}"
            line += f"{values['spearman']:8.4f}{lowest:8.4f}"
            if threshold is not None:
                line += (
                    f"   accuracy {values['accuracy']:.4f}, F1 {values['f1']:.4f} at {threshold:.4f} (from validation)"
                )
            lines.append(line)
    for name, calibration in found.calibrations.items():
        if "test" in found.metrics[name]:
            values = found.metrics[name]["test"]
            errors = (f"{what} {values[f'uncalibrated_{key}']:.4f} -> {values[key]:.4f}"
                      for what, key in (("Brier", "brier"), ("calibration error", "calibration_error")))  # fmt: skip
            lines.append(f"{name} test, scores -> probabilities ({calibration.method}): {', '.join(errors)}")
    return "\n".join(lines)


def retrieval_table(before: Metrics, found: Evaluation) -> list[str]:
    """Recall@1 and Recall@10 before and after training, a line per split with queries; none without any."""
    lines = []
    for name, splits in found.intervals.items():
        for split, intervals in splits.items():
            if "recall_at_10" not in intervals:
                continue
            was, now = before[name][split], found.metrics[name][split]
            line = f"{name + ' ' + split:<24}{now['queries']:8.0f}{now['pool']:8.0f}"
            for metric in ("recall_at_1", "recall_at_10"):
                low, high = intervals[metric]
                line += f"  {was[metric]:.4f} -> {now[metric]:.4f} [{low:.4f}, {high:.4f}]"
            lines.append(line)
    if lines:
        heads = (f"  {f'Recall@{k} before -> after [95%]':<34}" for k in (1, 10))
        lines.insert(0, f"{'Retrieval':<24}{'queries':>8}{'pool':>8}{''.join(heads)}".rstrip())
    return lines


def check_metric(held: HeldOut, names: list[str], args: PairTrainingArguments) -> None:
    """Checks that a retrieval metric that is to select the best epoch is measured.

    Args:
        names: corpora for selection.

    Raises:
        InputError: none of their validation splits has a retrieval task.
    """
    splits = [held[name]["validation"] for name in names if "validation" in held[name]]
    if args.metric_for_best_model in METRICS and all(data.retrieval is None for data in splits):
        raise InputError(
            f"--metric_for_best_model {args.metric_for_best_model} needs queries, and the validation split of "
            f"{', '.join(names)} has none here: retrieval is measured on bi-encoders, with --retrieval true, where "
            "pairs of different sentences are labelled similar. No epoch could be told from another. Select by "
            "spearman, or name --eval_corpora with similar pairs."
        )


def corpora_that_rank(corpora: list[Corpus]) -> list[Corpus]:
    """Corpora whose validation split can rank models, since it has two different labels."""
    return [c for c in corpora if "validation" in c.splits and can_rank(c.labels("validation"))]


def select_on_validation(corpora: list[Corpus], args: PairTrainingArguments) -> None:
    """Keeps the best epoch if validation can select it, else the last one; warns about corpora that cannot select."""
    metric = args.metric_for_best_model
    usable = [c for c in corpora if "validation" in c.splits and can_select(c.labels("validation"), metric)]
    idle = ", ".join(str(corpus.folder) for corpus in corpora if corpus not in usable)
    if not usable:
        logger.warning(
            "%s has no validation split with two different labels: the last epoch is kept, best or not. Similar pairs "
            "alone can select a bi-encoder by --metric_for_best_model recall_at_10.",
            idle,
        )
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None
    elif idle and args.eval_strategy != "no":
        logger.warning("%s selects nothing: it has no validation split with two different labels.", idle)


CLEAR = 0.1  # a Spearman whose sign is no accident
LITTLE = 0.05  # way of a model, in cosine distance or logits
FEW_STEPS = 200
FIND_MORE = "if you search with this model, --loss cosent_in_batch or a lower --learning_rate"


def judge(record: RunRecord, measured: Iterable[Corpus], training: list[Corpus]) -> Metrics:
    """Adds shortfalls and remedies to a record.

    Args:
        measured: the corpora of the record's metrics.

    Returns:
        Spearman of character overlap, see `floors`.
    """
    floor = floors(measured)
    record.shortfalls = shortfalls(record, floor)
    if any(one.metric == "spearman" and not one.value > one.reference for one in record.shortfalls):
        record.remedies = remedies(record, inverted(training, floor))
    if any(one.metric == "recall_at_10" and one.clear for one in record.shortfalls):
        record.remedies.append(FIND_MORE)
    return floor


def floors(corpora: Iterable[Corpus], splits: tuple[str, ...] = ("validation", "test")) -> Metrics:
    """Spearman of plain character overlap, by corpus and split; splits of a single label are left out."""
    found: Metrics = {}
    for corpus in corpora:
        for split in splits:
            if split in corpus.splits and can_rank(corpus.labels(split)):
                rows = corpus.split(split)
                value = overlap_spearman(rows["sentence1"][:], rows["sentence2"][:], corpus.labels(split))
                found.setdefault(corpus.manifest.name, {})[split] = {"spearman": value}
    return found


def shortfalls(record: RunRecord, floor: Metrics) -> list[Shortfall]:
    """Where Spearman is not clearly above its beginning, or not above the floor, and where Recall@10 has fallen."""
    found = []
    for name, splits in record.after.items():
        for split, after in splits.items():
            before, intervals = record.before[name][split], record.intervals.get(name, {}).get(split, {})
            value, reference, interval = after["spearman"], before["spearman"], intervals.get("spearman", ())
            if not math.isnan(reference) and not all(one > reference for one in (value, *interval)):
                found.append(Shortfall(name, split, "spearman", value, BEFORE, reference, *interval))
            lowest = floor.get(name, {}).get(split, {}).get("spearman", math.nan)
            if not math.isnan(lowest) and not value > lowest:
                found.append(Shortfall(name, split, "spearman", value, OVERLAP, lowest))
            recall, reference = after.get("recall_at_10", 0.0), before.get("recall_at_10", 0.0)
            if recall < reference:
                interval = intervals.get("recall_at_10", ())
                found.append(Shortfall(name, split, "recall_at_10", recall, BEFORE, reference, *interval))
    return found


def inverted(training: list[Corpus], floor: Metrics) -> list[str]:
    """Corpora whose training labels fall where characters are shared, although those of a held-out split rise."""
    found = []
    for corpus in training:
        name = corpus.manifest.name
        held_out = [split["spearman"] for split in floor.get(name, {}).values()]
        own = floors([corpus], ("train",)).get(name, {"train": {"spearman": 0.0}})["train"]["spearman"]
        if own < -CLEAR and any(value > CLEAR for value in held_out):
            found.append(name)
    return found


def remedies(record: RunRecord, upside_down: list[str]) -> list[str]:
    """At most two remedies for a run that was in vain, from what is known of it.

    Args:
        upside_down: result of `inverted`.
    """
    rate, epochs, steps = (record.recipe[name] for name in ("learning_rate", "num_train_epochs", "max_steps"))
    lower = f"lower --learning_rate, e.g. {rate / 5:.0e} instead of {rate:.0e}"
    higher = f"raise --learning_rate, e.g. {rate * 5:.0e} instead of {rate:.0e}"
    longer = f"train longer, e.g. {f'--max_steps {2 * steps}' if steps > 0 else f'--num_train_epochs {2 * epochs:g}'}"
    curve = [entry["eval_spearman"] for entry in record.history if "eval_spearman" in entry]
    best = int(np.nanargmax(curve)) if curve and not np.isnan(curve).all() else None
    taken = max((entry.get("step", 0) for entry in record.history), default=0)
    moved = math.inf if record.proof is None or record.proof.moved is None else record.proof.moved
    wrong = "the labels of {} train are the other way round"
    reasons = [
        *((True, "prepare it again, high = similar", wrong.format(name)) for name in upside_down),
        (bool(curve) and best is None, lower, "all scores became equal"),
        (moved < LITTLE, higher, f"the model moved only {moved:.2g} from its start"),
        (len(curve) > 1 and best == 0, lower, "the first epoch was the best"),
        (len(curve) > 1 and best == len(curve) - 1, longer, "validation was still rising"),
        (taken < FEW_STEPS, longer, f"there were only {taken} steps"),
    ]
    found: dict[str, str] = {}
    for applies, advice, why in reasons:
        if applies:
            found.setdefault(advice, f"{advice} ({why})")
    either_way = f"compare --learning_rate {rate / 3:.0e} and {rate * 3:.0e} with {rate:.0e}"
    return list(found.values())[:2] or [either_way]


def lines(record: RunRecord) -> list[str]:
    """The shortfalls and remedies of a run, as lines."""
    advice = [f"Likeliest remedies: {'; or '.join(record.remedies)}."] if record.remedies else []
    return in_words(record.shortfalls) + advice


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task whose sentences are embedded with the pairs of a split, which are evaluated anyway.

    Args:
        rest: pairs of the sentences that those of the split do not embed, as they are to be searched; None if there are
            none. If the two prompts differ, these are all sentences of the pool, each as a query and as a document.
        missing: places in the pool of the sentences of `rest`, int64 of shape `(pairs of rest, 2)`.
        sides: whether queries and documents are embedded with different prompts.
    """

    task: RetrievalTask
    rest: PairDataset | None
    missing: np.ndarray
    sides: bool

    @classmethod
    def of(cls, task: RetrievalTask, encoder: TextModel, prefixes: Prefixes) -> "RetrievalSet":
        everything, sides = np.arange(len(task.pool)), prefixes[0] != prefixes[1]
        if sides:
            missing = np.stack([everything, everything], axis=1)
        else:
            alone = np.setdiff1d(everything, task.places)
            missing = np.resize(alone, (-(-len(alone) // 2), 2))  # the first one twice if their number is odd
        rest = None
        if len(missing):
            columns = {f"sentence{side + 1}": [task.pool[row] for row in missing[:, side]] for side in (0, 1)}
            rows = datasets.Dataset.from_dict(columns | {"label": np.zeros(len(missing), np.float32)})
            rest = PairDataset(rows, encoder.tokenizer, encoder.max_length, prefixes=prefixes)
        return cls(task, rest, missing, sides)

    def vectors(self, own: np.ndarray, rest: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the pool as queries and as documents, each float32 of shape `(pool, hidden)` and of length 1.

        Args:
            own, rest: embeddings of the pairs of the split and of `rest`, of shape `(pairs, 2, hidden)`.
        """
        if self.sides:
            assert rest is not None
            return unit(rest[:, 0]), unit(rest[:, 1])
        pool = np.empty((len(self.task.pool), own.shape[-1]), np.float32)
        pool[self.task.places.ravel()] = own.reshape(-1, own.shape[-1])
        if rest is not None:
            pool[self.missing.ravel()] = rest.reshape(-1, rest.shape[-1])
        pool = unit(pool)
        return pool, pool


def add_retrieval(
    held: dict[str, dict[str, PairDataset]],
    corpora: dict[str, Corpus],
    args: RetrievalArguments,
    encoder: TextModel,
    prefixes: Prefixes,
) -> None:
    """Gives every split of held-out pairs in which something is to be found its retrieval task."""
    for name, splits in held.items():
        for split, pairs in splits.items():
            task = retrieval_task(corpora[name], split, args)
            if task is not None:
                pairs.retrieval = RetrievalSet.of(task, encoder, prefixes)
