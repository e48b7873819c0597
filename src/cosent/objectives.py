"""What a run optimises: a loss by name, its parameters bound, fitted to the labels of a corpus."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from cosent.losses import LOSSES, SentenceBertHead
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
        label_min, label_max: range of the labels of the corpus.
        features: what a Sentence-BERT head concatenates.
    """

    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    reads: str
    compares_pairs: bool
    label_min: float
    label_max: float
    features: tuple[str, ...]

    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        """What the loss is given for raw labels: class numbers from 0 for `logits`, else labels scaled to 0..1."""
        shifted = labels - self.label_min
        return shifted if self.reads == "logits" else shifted / (self.label_max - self.label_min)

    def head(self, hidden_size: int, seed: int) -> torch.nn.Module | None:
        """A fresh head with one class per label for losses that read `logits`, else None."""
        if self.reads != "logits":
            return None
        return SentenceBertHead(hidden_size, int(self.label_max - self.label_min) + 1, self.features, seed=seed)


def build(name: str, parameters: dict[str, float], features: str, manifest: Manifest, labels: np.ndarray) -> Objective:
    """Fits a loss to a corpus.

    Args:
        name: a key of `LOSSES`.
        parameters: values for the loss's own parameters, e.g. `{"scale": 20.0}`; None stands for the loss's default.
        features: comma-separated features of a Sentence-BERT head.
        manifest: manifest of the training corpus.
        labels: training labels of shape `(pairs,)`.

    Raises:
        InputError: a parameter that this loss does not have, labels of a single value, fractional labels for classes.
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
    distinct = np.unique(labels)
    if len(distinct) < 2:
        raise InputError(
            f"All {len(labels)} training pairs of {manifest.name} have the label {distinct[0]:g}. A similarity cannot "
            "be learnt from one label: every loss here would push all scores one way. Add pairs of another label."
        )
    if chosen.reads == "logits" and np.any(distinct != np.round(distinct)):
        raise InputError(
            f"--loss {name} makes one class of every label, and {manifest.name} has fractional labels "
            f"({', '.join(f'{label:g}' for label in distinct[:4])} ...). Use --loss cosent: it needs their order alone."
        )
    return Objective(
        loss=partial(chosen.function, **given),
        reads=chosen.reads,
        compares_pairs=chosen.compares_pairs,
        label_min=manifest.label_min,
        label_max=manifest.label_max,
        features=tuple(part.strip() for part in features.split(",")),
    )
