"""Weight averaging of several models, and checks that they are compatible."""

import logging
from collections.abc import Sequence

import numpy as np
import torch

from cosent.data.pairs import tokenizer_rules
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.record import read_record

logger = logging.getLogger(__name__)


def shares(weights: Sequence[float] | None, models: int) -> list[float]:
    """Weights of models, scaled to a sum of 1; equal ones for None."""
    numbers = [1.0] * models if weights is None else list(weights)
    if len(numbers) != models or not all(0 < number < np.inf for number in numbers):
        got = " ".join(f"{number:g}" for number in numbers)
        raise InputError(f"--weights takes one positive number for each of the {models} models, got {got}.")
    return [number / sum(numbers) for number in numbers]


# Entries of a config that say where it is from, or how it is trained: the weights mean the same with others.
ORIGIN = ("architectures", "transformers_version", "dtype", "torch_dtype", "sentence_transformers")


def average(
    models: Sequence[SentenceEncoder | CrossEncoder], names: Sequence[str], weights: Sequence[float] | None = None
) -> SentenceEncoder | CrossEncoder:
    """The first model, with the weighted mean of the weights of all; `names` are their folders, for messages."""
    first, *others = (description(model) for model in models)
    for name, other in zip(names[1:], others, strict=True):
        what = next((what for what, value in first.items() if other[what] != value), None)
        if what is not None:
            raise InputError(
                f"{names[0]} and {name} differ in their {what}: their weights have no mean. Merge runs from one start."
            )
    parts = shares(weights, len(models))
    states = [model.state_dict() for model in models]
    mean = {name: mean_of([state[name] for state in states], parts, name) for name in states[0]}
    models[0].load_state_dict(mean)
    models[0].max_length = max(model.max_length for model in models)
    return models[0]


def mean_of(tensors: list[torch.Tensor], parts: list[float], name: str) -> torch.Tensor:
    """Weighted mean, computed in float64; of integers, which must be equal, the first."""
    if tensors[0].is_floating_point():
        mean = sum(part * tensor.double() for part, tensor in zip(parts, tensors, strict=True))
        return mean.to(tensors[0].dtype)
    if not all(torch.equal(tensors[0], other) for other in tensors[1:]):
        raise InputError(f"The models differ in the integers of {name}, which have no mean. Merge runs from one start.")
    return tensors[0]


def description(model: SentenceEncoder | CrossEncoder) -> dict:
    """Properties that two models must share, by their name in messages, the most obvious first."""
    backbone = model.backbone.config
    settings = {
        key: value
        for key, value in backbone.to_dict().items()
        if key not in ORIGIN and not key.startswith("_") and "drop" not in key
    }
    return {
        "tower": "bi-encoder" if isinstance(model, SentenceEncoder) else "cross-encoder",
        "architecture": backbone.model_type,
        "pooling and modules": model.modules_after_backbone if isinstance(model, SentenceEncoder) else "",
        "prompts": model.prompts,
        "tokenizer": tokenizer_rules(model.tokenizer),
        "shapes of weights": {name: tuple(weight.shape) for name, weight in model.state_dict().items()},
        "config.json": settings,
    }


def common_start(names: Sequence[str]) -> str | None:
    """The model that all runs started from, by their records; None, with a warning, if there is none or not known."""
    records = [read_record(name) for name in names]
    starts = {record.recipe.get("model_name_or_path") if record else None for record in records}
    if len(starts) == 1 and (None not in starts or len(names) == 1):
        return starts.pop()
    logger.warning(
        "The models do not come from one start (%s), and a mean of unrelated weights is usually noise: evaluate it.",
        ", ".join(sorted(str(start or "unknown") for start in starts)),
    )
    return None
