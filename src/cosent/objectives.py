"""What a run optimises: a loss by name, its parameters bound, fitted to the labels of its corpora."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from cosent.heads import SentenceBertHead
from cosent.losses import LOSSES
from cosent.schema import InputError, Manifest


@dataclass(frozen=True)
class Objective:
    """A loss as a trainer uses it.

    Args:
        loss: `(what reads names, targets) -> scalar`, with its parameters bound.
        reads: output of the model that the loss reads: `scores` (batch,), `embeddings` (batch, 2, hidden) or `logits`
            (batch, classes).
        compares_pairs: the loss ranks the pairs of a batch against one another, so that a batch without two different
            labels teaches nothing.
        classes: logits that a head must give; 0 for a loss that reads none.
        bias: whether the head has one; the joint model of kexue.fm 8541 has none.
    """

    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    reads: str
    compares_pairs: bool
    classes: int = 0
    bias: bool = True

    def head(self, hidden_size: int, features: str | None, seed: int) -> torch.nn.Module | None:
        """A fresh Sentence-BERT head on comma-separated features, or None for a loss that reads no logits.

        Raises:
            InputError: features that no head has, or for a loss without one.
        """
        if not self.classes:
            if features is not None:
                raise InputError("--features are those of a Sentence-BERT head: leave it out, or choose --loss sbert.")
            return None
        names = [name.strip() for name in (features or "u,v,|u-v|").split(",")]
        try:
            return SentenceBertHead(hidden_size, self.classes, names, self.bias, seed)
        except ValueError as error:
            raise InputError(f"--features {features}: {error}") from error


def build(name: str, parameters: dict[str, float], manifests: list[Manifest]) -> Objective:
    """Binds a loss and its parameters, for one corpus or several.

    Args:
        name: a key of `LOSSES`.
        parameters: values for the loss's own parameters, e.g. `{"scale": 20.0}`; None stands for the loss's default.
        manifests: manifests of the training corpora.

    Raises:
        InputError: a parameter that this loss does not have, or corpora that it cannot learn from together.
    """
    chosen = LOSSES[name]
    given = {key: value for key, value in parameters.items() if value is not None}
    accepted = list(inspect.signature(chosen.function).parameters)[2:]
    for key in given:
        if key not in accepted:
            raise InputError(
                f"--{key} does nothing for --loss {name}, which has {', '.join(accepted) or 'no parameters'}. "
                "Leave it out, or choose the loss it belongs to."
            )
    kinds = [manifest.label_kind for manifest in manifests]
    if name == "sbert_joint" and not ("nli" in kinds and set(kinds) > {"nli"}):
        raise InputError(
            f"--loss sbert_joint trains one head on similarity and NLI pairs, got {', '.join(kinds)} labels only. "
            "Name both kinds, e.g. --corpus lcqmc,nli, or use --loss sbert."
        )
    if name == "sbert" and len(manifests) > 1:
        raise InputError(
            "--loss sbert makes one class of every label, and the labels of several corpora mean different things. "
            "Use --loss sbert_joint (similarity and NLI pairs), --loss cosent, or one corpus."
        )
    classes = 0
    if chosen.reads == "logits":
        classes = 5 if name == "sbert_joint" else int(manifests[0].label_max - manifests[0].label_min) + 1
    loss = partial(chosen.function, **given)
    return Objective(loss, chosen.reads, chosen.compares_pairs, classes, bias=name != "sbert_joint")


def targets(name: str, labels: np.ndarray, manifest: Manifest) -> np.ndarray:
    """What a loss is given for the labels of a corpus, float32 of shape `(pairs,)`.

    Class numbers from 0 for `sbert`; for `sbert_joint` similarity labels as 0 or 1 (graded ones split at the middle of
    their range, as kexue.fm 8541 does with STS-B) and NLI labels as 2, 3, 4; for all others the labels scaled to 0..1.

    Raises:
        InputError: labels of a single value, or fractional labels for classes.
    """
    distinct = np.unique(labels)
    if len(distinct) < 2:
        raise InputError(
            f"All {len(labels)} training pairs of {manifest.name} have the label {distinct[0]:g}. A similarity cannot "
            "be learnt from one label: every loss here would push all scores one way. Add pairs of another label."
        )
    low, high = manifest.label_min, manifest.label_max
    if name == "sbert_joint":
        return labels + 2 if manifest.label_kind == "nli" else (labels > (low + high) / 2).astype(np.float32)
    if name == "sbert":
        if np.any(distinct != np.round(distinct)):
            some = ", ".join(f"{label:g}" for label in distinct[:4])
            raise InputError(
                f"--loss sbert makes one class of every label, and {manifest.name} has fractional labels ({some} ...). "
                "Use --loss cosent: it needs their order alone."
            )
        return labels - low
    scaled = (labels.astype(np.float64) - low) / (high - low)
    return scaled.clip(0, 1).astype(np.float32)  # float32 labels can lie a rounding error outside of their range
