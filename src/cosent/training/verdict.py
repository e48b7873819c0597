"""Say in words when a run harmed, or was in vain: no better than before, or than counting shared characters."""

import math
from collections.abc import Iterable

import numpy as np

from cosent.data.corpus import Corpus
from cosent.evaluation.metrics import can_rank
from cosent.evaluation.overlap import overlap_spearman
from cosent.run import BEFORE, OVERLAP, Metrics, RunRecord, Shortfall, in_words

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
