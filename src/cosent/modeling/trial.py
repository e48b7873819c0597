"""Trial forward pass that checks an architecture for causal attention and effects of padding."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from cosent.compute.contexts import evaluating
from cosent.compute.packed_backbone import DECODERS, FLASH, POSITIONS, averaged_layers
from cosent.errors import InputError

logger = logging.getLogger(__name__)

PADDING_EFFECT = 0.02  # above the rounding of bfloat16, below the effect in architectures that read padding


@dataclass(frozen=True)
class Trial:
    """Observed properties of a backbone.

    Args:
        is_causal: whether the first token does not see the last one.
        padding_effect: largest change of a token vector when its sentence is padded, relative to the largest vector
            component; rounding causes about 1e-6.
    """

    is_causal: bool
    padding_effect: float


def check_architecture(backbone: nn.Module, tokenizer, pooling: str | None = None) -> None:
    """Tries out a backbone, unless it is a verified encoder, and warns the user of its limits.

    Args:
        pooling: pooling of its token vectors; None if a classifier reads them.

    Raises:
        InputError: it does not run, or the pooling reads a first token that sees no other.
    """
    kind = backbone.config.model_type
    if kind in POSITIONS and kind not in DECODERS:
        return
    trial = try_out(backbone, tokenizer)
    if trial.is_causal and pooling is not None and "cls" in pooling.split("+"):
        raise InputError(
            f"--pooling {pooling} reads the first token, but in a {kind} model that token sees no other: sentences "
            "with the same beginning would be equal. Pass --pooling mean."
        )
    if trial.padding_effect > PADDING_EFFECT:
        logger.warning(
            "%s models read padded places: vectors and scores depend on the other sentences of a batch (here by "
            "%.0f%%). Take another architecture, or compute in batches of one.",
            kind,
            100 * trial.padding_effect,
        )


@torch.no_grad()
def try_out(backbone: nn.Module, tokenizer) -> Trial:
    """Runs a backbone on a sentence with and without padding, and on two sentences that differ in the last token.

    Raises:
        InputError: it does not run on `input_ids` and `attention_mask`, as an encoder must.
    """
    special = set(tokenizer.all_special_ids)
    a, b, c, d, e = [number for number in range(len(special) + 5) if number not in special][:5]
    padded = [[a, b, c, d], [a, b, c, e], [a, b, c, tokenizer.pad_token_id]]
    mask = [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]
    try:
        with evaluating(backbone), on_any_device(backbone.config):
            one_end, other_end, short = _vectors(backbone, padded, mask)
            (alone,) = _vectors(backbone, [[a, b, c]], [[1, 1, 1]])
    except Exception as error:  # architectures that are not encoders fail in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"A {backbone.config.model_type} model does not run on plain sentences ({reason}). Take an encoder, such "
            "as a BERT, RoBERTa, ModernBERT, or a decoder that is trained for embeddings."
        ) from error
    effect = (short[:3] - alone).abs().max() / alone.abs().max()
    return Trial(torch.equal(one_end[0], other_end[0]), float(effect))


@contextmanager
def on_any_device(config) -> Iterator[None]:
    """Replaces flash attention, whose kernels need a GPU, to which a loaded model has not been moved yet."""
    chosen = config._attn_implementation
    config._attn_implementation = "sdpa" if chosen in FLASH else chosen
    try:
        yield
    finally:
        config._attn_implementation = chosen


def _vectors(backbone: nn.Module, ids: list[list[int]], mask: list[list[int]]) -> torch.Tensor:
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    inputs = {name: tensor.to(backbone.device) for name, tensor in inputs.items()}
    return averaged_layers(backbone, (-1,), **inputs).float()
