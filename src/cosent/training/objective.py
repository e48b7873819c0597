"""Objective of a run: a loss with bound parameters, checked against the labels of its corpora."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from cosent.data.groups import similar
from cosent.data.manifest import Labels
from cosent.errors import InputError
from cosent.losses import LOSSES
from cosent.losses.in_batch import SIMILAR
from cosent.models.heads import SentenceBertHead


@dataclass(frozen=True)
class Objective:
    """A loss as a trainer uses it.

    Args:
        name: that of the loss in `LOSSES`.
        loss: `(output named by reads, targets) -> scalar`, with its parameters bound.
        reads: output of the model that the loss reads: `scores` (batch,), `embeddings` (batch, 2, hidden) or `logits`
            (batch, classes).
        compares_pairs: whether the loss ranks the pairs of a batch against one another, so that a batch without two
            different labels teaches nothing.
        compares_sentences: whether sentences of different pairs are compared too, by the groups of a batch.
        classes: number of logits of a bi-encoder's head, 0 for a loss that reads none, or of a cross-encoder.
        bias, features: whether a bi-encoder's head has a bias (the joint model of kexue.fm 8541 has none), and what it
            reads of two embeddings `u` and `v`.
    """

    name: str
    loss: Callable[..., torch.Tensor]
    reads: str
    compares_pairs: bool
    compares_sentences: bool = False
    classes: int = 0
    bias: bool = True
    features: tuple[str, ...] = ("u", "v", "|u-v|")

    def targets(self, labels: np.ndarray, meaning: Labels, in_batch_negatives: bool = True) -> np.ndarray:
        """`loss_targets` of the labels of a corpus."""
        return loss_targets(self.name, labels, meaning, self.classes, in_batch_negatives)

    def head(self, hidden_size: int, seed: int) -> torch.nn.Module | None:
        """A fresh head of a bi-encoder, or None for a loss that reads no logits."""
        return SentenceBertHead(hidden_size, self.classes, self.features, self.bias, seed) if self.classes else None


# The one kind of label that a classifier of pairs can learn, and the losses for other kinds.
ONLY_KIND = {"ce": ("binary", "cosent, bce or mse"), "ce3": ("nli", "ce, bce or cosent")}
ABOVE_0 = ("scale", "negative_weight", "contrastive_weight")
NO_FLAGS = ("scores", "logits", "embeddings", "labels", "groups")  # from the model or the batch


def build_objective(
    name: str,
    parameters: dict[str, Any],
    manifests: list[Labels],
    tower: str = "bi_encoder",
) -> Objective:
    """Binds a loss and its parameters, for one corpus or several.

    Args:
        name: a key of `LOSSES`.
        parameters: values for the loss's own parameters, e.g. `{"scale": 20.0}`, and of a Sentence-BERT head `features`
            and `sbert_classes`; None for the default.
        manifests: of the training corpora.
    """
    check_tower(name, tower)
    chosen = LOSSES[name]
    given = {key: value for key, value in parameters.items() if value is not None}
    sbert_classes, features = given.pop("sbert_classes", None), given.pop("features", None)
    reads_head = tower == "bi_encoder" and chosen.reads == "logits"
    if features is not None and not reads_head:
        raise InputError("--features are those of a Sentence-BERT head: leave it out, or choose --loss sbert.")
    check_parameters(name, given, tower)
    check_labels(name, manifests)
    loss = partial(chosen.function, **{**chosen.tower_defaults.get(tower, {}), **given})
    classes = chosen.classes if tower == "cross_encoder" else 0
    if reads_head:
        classes = 5 if name == "sbert_joint" else 3 if manifests[0].label_kind == "nli" else sbert_classes or 2
    if sbert_classes is not None and (name != "sbert" or manifests[0].label_kind in ("binary", "nli")):
        raise InputError("--sbert_classes is for --loss sbert on graded labels. Leave it out.")
    if sbert_classes is not None and sbert_classes < 2:
        raise InputError(f"--sbert_classes must be at least 2, got {sbert_classes}.")
    return Objective(
        name,
        loss,
        chosen.reads,
        chosen.compares_pairs,
        chosen.compares_sentences,
        classes,
        bias=name != "sbert_joint",
        features=tuple(features or Objective.features),
    )


def check_tower(name: str, tower: str) -> None:
    """Refuses a loss that reads an output that this tower does not have."""
    towers = LOSSES[name].towers
    if tower not in towers:
        fitting = ", ".join(other for other, loss in LOSSES.items() if tower in loss.towers)
        raise InputError(
            f"--loss {name} is for --tower {towers[0]}, not {tower}. Choose it, or one of the losses {fitting}."
        )


def check_parameters(name: str, given: dict[str, Any], tower: str) -> None:
    """Refuses parameters that a loss does not have, and values out of range."""
    parameters = inspect.signature(LOSSES[name].function).parameters
    accepted = [key for key in parameters if key not in NO_FLAGS]
    for key in given:
        if key not in accepted:
            raise InputError(
                f"--{key} does nothing for --tower {tower} --loss {name}, which has "
                f"{', '.join(accepted) or 'no parameters'}. Leave it out."
            )
    for key in ABOVE_0:
        if given.get(key, 1.0) <= 0:
            raise InputError(f"--{key} must be above 0, got {given[key]:g}.")
    if not 0 < given.get("label_smoothing_factor", 0.5) < 1:
        raise InputError(
            f"--label_smoothing_factor must be above 0 and below 1, got {given['label_smoothing_factor']:g}."
        )


def check_labels(name: str, manifests: list[Labels]) -> None:
    """Refuses corpora that a loss cannot learn from, separately or together."""
    for manifest in manifests:
        kind, others = ONLY_KIND.get(name, (manifest.label_kind, ""))
        if manifest.label_kind != kind:
            raise InputError(
                f"--loss {name} needs {kind} labels, and {manifest.name} has {manifest.label_kind} labels. "
                f"Use --loss {others}."
            )
    kinds = [manifest.label_kind for manifest in manifests]
    if name == "sbert_joint" and not ("nli" in kinds and set(kinds) > {"nli"}):
        raise InputError(f"--loss sbert_joint needs similarity and NLI pairs, as of lcqmc nli, got {', '.join(kinds)}.")
    if name == "sbert" and len(manifests) > 1:
        raise InputError(
            f"--loss {name} makes one class of every label, and the labels of several corpora mean different things. "
            "Use one corpus, or --loss sbert_joint or cosent."
        )


def loss_targets(
    name: str, labels: np.ndarray, manifest: Labels, classes: int = 2, in_batch_negatives: bool = True
) -> np.ndarray:
    """Targets of a loss for the labels of a corpus, float32 of shape `(pairs,)`.

    Class numbers from 0 for `sbert`, `ce` and `ce3`; for `sbert_joint` similarity labels as 0 or 1 and NLI labels as 2,
    3, 4; for all others the labels scaled to 0..1. Graded labels become classes by `equal_parts`.

    Args:
        classes: of `sbert`, `ce` or `ce3`, as in `Objective`.
        in_batch_negatives: whether some sentences of the corpus differ in meaning, for the remedy of an error.
    """
    distinct = np.unique(labels)
    in_batch = ", or train a bi-encoder on positives alone with --loss infonce" * in_batch_negatives
    any_similar = similar(distinct, manifest.similar_from).any()
    if LOSSES[name].compares_sentences:
        if not any_similar:
            raise InputError(
                f"--loss {name} learns from similar pairs, and no training pair of {manifest.name} has a label of at "
                f"least {manifest.similar_from:g}. Add such pairs{', or use --loss cosent' * (len(distinct) > 1)}."
            )
    elif len(distinct) < 2:
        raise InputError(
            f"All {len(labels)} training pairs of {manifest.name} have the label {distinct[0]:g}, from which --loss "
            f"{name} learns nothing. Add pairs of another label{in_batch if any_similar else ''}."
        )
    if name == "sbert_joint":
        return labels + 2 if manifest.label_kind == "nli" else equal_parts(labels, manifest, 2)
    if name in ("sbert", "ce", "ce3"):
        targets = equal_parts(labels, manifest, classes)
        if (targets == targets[0]).all():
            raise InputError(
                f"All {len(labels)} training pairs of {manifest.name} fall into one of {classes} classes of labels. "
                f"Use --sbert_classes {classes + 1} or more, or --loss cosent."
            )
        return targets
    return scaled(labels, manifest)


def equal_parts(labels: np.ndarray, manifest: Labels, classes: int) -> np.ndarray:
    """Class of each label, from 0: the range of labels in equal parts, each with its upper end; float32 `(pairs,)`.

    Two classes of the grades 0..5 split them at 2.5, as the Sentence-BERT of kexue.fm 8847 does on STS-B; six make a
    class of every grade.

    Source: https://github.com/bojone/CoSENT, `sbert.py`.
    """
    shares = (labels.astype(np.float64) - manifest.label_min) / (manifest.label_max - manifest.label_min)
    return (np.ceil((shares * classes).round(6)) - 1).clip(0, classes - 1).astype(np.float32)


def scaled(labels: np.ndarray, manifest: Labels) -> np.ndarray:
    """Labels scaled to 0..1, float32 of shape `(pairs,)`: at least `SIMILAR` where they are at least `similar_from`."""
    low, high = manifest.label_min, manifest.label_max
    shares = ((labels.astype(np.float64) - low) / (high - low)).astype(np.float32)
    # Rounding could carry a label over an end of its range, or over the boundary that in-batch losses read.
    boundary = np.float32(SIMILAR)
    is_similar = similar(labels, manifest.similar_from)
    return np.where(is_similar, shares.clip(boundary, 1), shares.clip(0, np.nextafter(boundary, np.float32(0))))
