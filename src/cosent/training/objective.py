"""Training objective: a loss with bound parameters, checked against the labels of the corpora."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cosent.data.corpus import similar
from cosent.data.labels import Labels
from cosent.errors import InputError
from cosent.losses import LOSSES, OUTPUTS, Loss
from cosent.losses.checks import equal_parts
from cosent.losses.in_batch import SIMILAR_LABEL
from cosent.models.modules import SentenceBertHead


@dataclass(frozen=True)
class Objective(Loss):
    """A loss as a trainer uses it: with its hyper-parameters bound, and the head of a bi-encoder that it reads.

    Args:
        classes: number of logits of a bi-encoder's head, 0 for a loss that reads none, or of a cross-encoder.
    """

    @property
    def outputs(self) -> list[str]:
        """Outputs of the model that the loss reads."""
        return [name for name in self.inputs if name in OUTPUTS]

    @property
    def learnt(self) -> dict[str, float] | None:
        """Numbers that a user loss learns and keeps current, its attribute `learnt`; None without it."""
        return getattr(getattr(self.function, "func", self.function), "learnt", None)

    def batch_loss(self, outputs: dict[str, Tensor], targets: dict[str, Tensor], progress: float) -> Tensor:
        """Loss of a batch after the share `progress` of the training."""
        tensors = outputs | targets | {"progress": progress}
        loss = self.function(**{name: tensors[name] for name in self.inputs})
        if not isinstance(loss, Tensor) or loss.ndim:
            got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"{self.name} has to return a scalar tensor, got {got}. Return a mean or sum of its terms."
            )
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise InputError(f"{self.name} returns a loss without a gradient. Compute it from inputs, not detached.")
        return loss

    def head(self, hidden_size: int, seed: int) -> torch.nn.Module | None:
        """A fresh head of a bi-encoder, or None for a loss that reads no logits."""
        has_bias = self.name != "sbert_joint"  # the joint model of kexue.fm 8541 has none
        return SentenceBertHead(hidden_size, self.classes, has_bias, seed) if self.classes else None


# The one kind of label that a classifier of pairs can learn, and the losses for other kinds.
ONLY_KIND = {"ce": ("binary", "cosent, bce or mse"), "ce3": ("nli", "ce, bce or cosent")}
OF_CLASSES = ("sbert", "ce", "ce3")  # their labels are numbers of classes
ABOVE_0 = ("scale", "negative_weight", "contrastive_weight")


def build_objective(
    loss: Loss, parameters: Mapping[str, Any], manifests: list[Labels], tower: str = "bi_encoder"
) -> Objective:
    """Builds the objective of a training: a loss with its parameters, checked against the labels.

    Args:
        parameters: values for the loss's own parameters, numbers or their text, e.g. `{"scale": 20.0}`, and
            `sbert_classes` of a Sentence-BERT head; None for the default.
        manifests: of the training corpora.
    """
    if tower not in loss.towers:
        fitting = ", ".join(name for name, other in LOSSES.items() if tower in other.towers)
        raise InputError(
            f"--loss {loss.name} is for --tower {loss.towers[0]}, not {tower}. Choose it, or a loss among {fitting}."
        )
    options = {key: value for key, value in parameters.items() if value is not None}
    sbert_classes = options.pop("sbert_classes", None)
    has_head = tower == "bi_encoder" and "logits" in loss.inputs
    defaults = dict(loss.on_logits) if tower == "cross_encoder" else {}
    bound = defaults | checked_parameters(loss, options, tower)
    check_labels(loss.name, manifests)
    if sbert_classes is not None and (loss.classes or not has_head or manifests[0].label_kind in ("binary", "nli")):
        raise InputError("--sbert_classes is for heads of bi-encoders on graded labels, as --loss sbert. Leave it out.")
    if sbert_classes is not None and sbert_classes < 2:
        raise InputError(f"--sbert_classes must be at least 2, got {sbert_classes}.")
    return Objective(
        loss.name,
        partial(loss.function, **bound),
        loss.compares_pairs,
        classes=number_of_logits(loss, manifests, tower, sbert_classes),
    )


def number_of_logits(loss: Loss, manifests: list[Labels], tower: str, sbert_classes: int | None = None) -> int:
    """Logits that a model needs for a loss: one class each, 1 for the score of a cross-encoder, 0 without a head."""
    if "logits" not in loss.inputs:
        return int(tower == "cross_encoder")
    return loss.classes or (3 if manifests and manifests[0].label_kind == "nli" else sbert_classes or 2)


def checked_parameters(loss: Loss, options: dict[str, Any], tower: str) -> dict[str, float]:
    """Values of the types of their defaults; refuses parameters that a loss does not have, and values out of range."""
    accepted, values = loss.hyper_parameters, {}
    for key, value in options.items():
        flag = "--scale" if key == "scale" else f"--loss_args {key}"
        if key not in accepted:
            raise InputError(
                f"{flag} does nothing for --tower {tower} --loss {loss.name}, which has "
                f"{', '.join(accepted) or 'no parameters'}. Leave it out."
            )
        try:
            number = float(value)
            values[key] = type(accepted[key])(number)
            if isinstance(values[key], int) and values[key] != number:
                raise ValueError(value)
        except (ValueError, OverflowError) as error:
            raise InputError(f"{flag}={value}: expected a number like {accepted[key]}, its default.") from error
        if key in ABOVE_0 and not values[key] > 0:
            raise InputError(f"{flag} must be above 0, got {values[key]:g}.")
    return values


def check_labels(name: str, manifests: list[Labels]) -> None:
    """Refuses corpora that a loss cannot learn from, separately or together."""
    for manifest in manifests:
        kind, alternatives = ONLY_KIND.get(name, (manifest.label_kind, ""))
        if manifest.label_kind != kind:
            raise InputError(
                f"--loss {name} needs {kind} labels, and {manifest.name} has {manifest.label_kind} labels. "
                f"Use --loss {alternatives}."
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
    loss: Loss, labels: np.ndarray, manifest: Labels, classes: int = 2, in_batch_negatives: bool = True
) -> np.ndarray:
    """Targets of a loss for the labels of a corpus, float32 of shape `(pairs,)`.

    Class numbers from 0 for `sbert`, `ce` and `ce3`; for `sbert_joint` similarity labels as 0 or 1 and NLI labels as 2,
    3, 4; for all others the labels scaled to 0..1. Graded labels become classes by `equal_parts`.

    Args:
        classes: of `sbert`, `ce` or `ce3`, as in `Objective`.
        in_batch_negatives: whether some sentences of the corpus differ in meaning, for the remedy of an error.
    """
    distinct = np.unique(labels)
    any_similar = similar(distinct, manifest.similar_from).any()
    if loss.compares_sentences:
        if not any_similar:
            other_loss = ", or use --loss cosent" if len(distinct) > 1 else ""
            raise InputError(
                f"--loss {loss.name} learns from similar pairs, and no training pair of {manifest.name} has a label of "
                f"at least {manifest.similar_from:g}. Add such pairs{other_loss}."
            )
    elif len(distinct) < 2:
        in_batch = ""
        if any_similar and in_batch_negatives:
            in_batch = ", or train a bi-encoder on positives alone with --loss infonce"
        raise InputError(
            f"All {len(labels)} training pairs of {manifest.name} have the label {distinct[0]:g}, from which --loss "
            f"{loss.name} learns nothing. Add pairs of another label{in_batch}."
        )
    if loss.name == "sbert_joint":
        return labels + 2 if manifest.label_kind == "nli" else classes_of(labels, manifest, 2)
    if loss.name in OF_CLASSES:
        targets = classes_of(labels, manifest, classes)
        if (targets == targets[0]).all():
            raise InputError(
                f"All {len(labels)} training pairs of {manifest.name} fall into one of {classes} classes of labels. "
                f"Use --sbert_classes {classes + 1} or more, or --loss cosent."
            )
        return targets
    return scaled(labels, manifest)


def classes_of(labels: np.ndarray, manifest: Labels, classes: int) -> np.ndarray:
    return equal_parts(torch.from_numpy(manifest.shares(labels)), classes).numpy().astype(np.float32)


def scaled(labels: np.ndarray, manifest: Labels) -> np.ndarray:
    """Labels scaled to 0..1, float32 `(pairs,)`: at least `SIMILAR_LABEL` where they are at least `similar_from`."""
    values = manifest.shares(labels).astype(np.float32)
    # Rounding could carry a label over an end of its range, or over the boundary that in-batch losses read.
    boundary = np.float32(SIMILAR_LABEL)
    is_similar = similar(labels, manifest.similar_from)
    return np.where(is_similar, values.clip(boundary, 1), values.clip(0, np.nextafter(boundary, np.float32(0))))
