"""Say in words when a run was in vain: no better than before training, or than counting shared characters."""

import math
from collections.abc import Iterable

import numpy as np

from cosent.data.corpus import Corpus
from cosent.evaluation.metrics import can_rank
from cosent.evaluation.overlap import overlap_spearman
from cosent.run import Metrics, RunRecord, Shortfall

CLEAR = 0.1  # a Spearman whose sign is no accident
FLAT = 0.98  # a training loss of this share of its beginning has hardly fallen
LITTLE = 0.05  # way of a model, in cosine distance or logits
FEW_STEPS = 200

BEFORE, OVERLAP = "before training", "by character overlap"


def judge(record: RunRecord, measured: Iterable[Corpus], training: list[Corpus]) -> Metrics:
    """Adds shortfalls and remedies to a record.

    Args:
        measured: the corpora of the record's metrics.

    Returns:
        Spearman of character overlap, see `floors`.
    """
    floor = floors(measured)
    record.shortfalls = shortfalls(record.before, record.after, floor)
    if record.shortfalls:
        record.remedies = remedies(record, inverted(training, floor))
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


def shortfalls(before: Metrics, after: Metrics, floor: Metrics) -> list[Shortfall]:
    """Where the end is no better than the beginning, or than the floor: on validation, or test where there is none."""
    found = []
    for name, splits in after.items():
        split = next((split for split in ("validation", "test") if split in floor.get(name, {})), None)
        if split is None:
            continue
        reached = splits[split]["spearman"]
        for than, metrics in ((BEFORE, before), (OVERLAP, floor)):
            reference = metrics[name][split]["spearman"]
            if not reached > reference and not math.isnan(reference):
                found.append(Shortfall(name, split, reached, than, reference))
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
    """The two likeliest remedies for a run with shortfalls, from what is known of it.

    Args:
        upside_down: result of `inverted`.
    """
    rate, epochs = record.recipe["learning_rate"], record.recipe["num_train_epochs"]
    lower = f"lower --learning_rate, e.g. {rate / 5:.0e} instead of {rate:.0e}"
    higher = f"raise --learning_rate, e.g. {rate * 5:.0e} instead of {rate:.0e}"
    longer = f"train longer, e.g. --num_train_epochs {math.ceil(2 * epochs)}"
    curve = [entry["eval_spearman"] for entry in record.history if "eval_spearman" in entry]
    best = int(np.nanargmax(curve)) if curve and not np.isnan(curve).all() else None
    steps = max((entry.get("step", 0) for entry in record.history), default=0)
    still = record.proof is not None and record.proof.moved is not None and record.proof.moved < LITTLE
    reasons = [
        *(
            (True, f"the labels of {name} train are the other way round", "prepare it again, high = similar")
            for name in upside_down
        ),
        (bool(curve) and best is None, "all scores became equal", lower),
        (is_flat(record) and still, "neither the loss nor the model moved much", higher),
        (is_flat(record) and not still, "the model moved and the loss did not fall", lower),
        (len(curve) > 1 and best == len(curve) - 1, "validation was still rising", longer),
        (len(curve) > 1 and best == 0, "the first epoch was the best", lower),
        (steps < FEW_STEPS, f"there were only {steps} steps", longer),
        (record.recipe.get("pooling") == "cls", "few models embed by their first token untrained", "--pooling mean"),
        (True, "", lower),
        (True, "", higher),
    ]
    found: dict[str, str] = {}
    for applies, why, advice in reasons:
        if applies:
            found.setdefault(advice, f"{advice} ({why})" if why else advice)
    return list(found.values())[:2]


def is_flat(record: RunRecord) -> bool:
    """Whether the training loss of the last third is hardly below that of the first."""
    losses = [entry["loss"] for entry in record.history if "loss" in entry]
    third = len(losses) // 3
    return third > 0 and bool(np.mean(losses[-third:]) > FLAT * np.mean(losses[:third]))


def in_words(record: RunRecord) -> list[str]:
    """The shortfalls and remedies of a run, as lines."""
    lines = [str(shortfall) for shortfall in record.shortfalls]
    return lines + ["Likeliest remedies: " + "; or ".join(record.remedies) + "."] if lines else []
