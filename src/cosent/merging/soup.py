"""Average the weights of runs from one start ("model soup", arXiv 2203.05482)."""

import logging
from collections.abc import Sequence

import torch

from cosent.data.tokenization import tokenizer_rules
from cosent.errors import InputError
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.run import read_record

logger = logging.getLogger(__name__)

# Entries of a config that say where it is from, or how it is trained: the weights mean the same with others.
ORIGIN = ("architectures", "transformers_version", "dtype", "torch_dtype", "sentence_transformers")


def average(
    models: Sequence[SentenceEncoder | CrossEncoder], names: Sequence[str], weights: Sequence[float]
) -> SentenceEncoder | CrossEncoder:
    """The first model, with the weighted mean of the weights of all.

    Args:
        models: of one tower and architecture, with the same tokenizer, pooling and prompts.
        names: their folders, for messages.
        weights: a positive number for each; their sum is scaled to 1.

    Raises:
        InputError: models that differ in more than their weights.
    """
    for model, name in zip(models[1:], names[1:], strict=True):
        check_same(models[0], model, names[0], name)
    shares = [weight / sum(weights) for weight in weights]
    states = [model.state_dict() for model in models]
    mean = {name: mean_of([state[name] for state in states], shares, name, names) for name in states[0]}
    models[0].load_state_dict(mean)
    models[0].max_length = max(model.max_length for model in models)
    return models[0]


def mean_of(tensors: list[torch.Tensor], shares: list[float], name: str, names: Sequence[str]) -> torch.Tensor:
    """Weighted mean, computed in float64; of integers, which must be equal, the first."""
    if not tensors[0].is_floating_point():
        if not all(torch.equal(tensors[0], other) for other in tensors[1:]):
            raise InputError(
                f"{' and '.join(names)} differ in {name}, which holds no numbers that have a mean. {OTHER}"
            )
        return tensors[0]
    mean = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True))
    return mean.to(tensors[0].dtype)


OTHER = "Merge them by vectors or scores, which takes any models of a tower."


def check_same(first: SentenceEncoder | CrossEncoder, second: SentenceEncoder | CrossEncoder, *names: str) -> None:
    """Refuses two models whose mean would be a model of neither kind."""
    described = [description(model) for model in (first, second)]
    for what, ours in described[0].items():
        theirs = described[1].get(what)
        if ours != theirs:
            shown = f" ({ours} and {theirs})" if len(f"{ours}{theirs}") < 200 else ""
            raise InputError(
                f"Expected models that differ in nothing but their weights, and {names[0]} and {names[1]} differ in "
                f"their {what}{shown}: the mean would be a model of neither kind. {OTHER}"
            )


def description(model: SentenceEncoder | CrossEncoder) -> dict:
    """What two models must have in common, in words, the plainest first."""
    backbone = model.backbone.config
    settings = {key: value for key, value in backbone.to_dict().items()
                if key not in ORIGIN and not key.startswith("_") and "drop" not in key}  # fmt: skip
    prompts = model.prompts.config() | {"include_prompt": model.prompts.include_prompt}
    return {
        "tower": "bi-encoder" if isinstance(model, SentenceEncoder) else "cross-encoder",
        "architecture": backbone.model_type,
        "pooling and modules": model.modules_after_backbone if isinstance(model, SentenceEncoder) else "",
        "prompts": prompts,
        "tokenizer": tokenizer_rules(model.tokenizer),
        "shapes of weights": {name: tuple(weight.shape) for name, weight in model.state_dict().items()},
        "config.json": settings,
    }


def common_start(names: Sequence[str]) -> str | None:
    """The model that all runs started from, by their records; None, with a warning, if there is none or not known."""
    records = [read_record(name) for name in names]
    starts = {record.recipe.get("model_name_or_path") if record else None for record in records}
    if len(starts) > 1 or starts == {None}:
        known = ", ".join(sorted(f"{start}" if start else "unknown" for start in starts))
        logger.warning(
            "The models are not known to come from one start (%s). The mean of weights that were not trained from the "
            "same ones is usually worth nothing: evaluate it before you use it.", known,
        )  # fmt: skip
        return None
    return starts.pop()
