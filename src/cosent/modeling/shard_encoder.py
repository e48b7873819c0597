"""Load a bi-encoder for encoding shards, and say which one it is."""

from pathlib import Path

import torch

from cosent.inference.embedding import quantized
from cosent.inference.shards import ShardSettings
from cosent.modeling.auto import load_bi_encoder
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.teacher import fingerprint


def load_encoder(model: str, dtype: str = "float32", int8: bool = False, device: str = "cpu") -> SentenceEncoder:
    return placed(load_bi_encoder(model), dtype, int8, device)


def placed(encoder: SentenceEncoder, dtype: str, int8: bool, device: str) -> SentenceEncoder:
    """A loaded encoder on its device, in the type of the computation."""
    encoder = encoder.to(device=device, dtype=getattr(torch, dtype)).eval()
    return quantized(encoder) if int8 else encoder


def load_with_settings(
    model: str | Path,
    device: str = "cpu",
    prompt: str | None = None,
    prompt_name: str | None = None,
    dtype: str = "float32",
    int8: bool = False,
    **settings,
) -> tuple[SentenceEncoder, ShardSettings]:
    """An encoder for shards, and what their manifests say of it.

    Args:
        prompt, prompt_name: as for `SentenceEncoder.encode`.
        settings: other fields of `ShardSettings`.
    """
    encoder = load_bi_encoder(str(model))
    sha256 = fingerprint(encoder, [])  # before it gets another type
    encoder = placed(encoder, dtype, int8, device)
    prefix = encoder.prefix(encoder.prompts.text(prompt, prompt_name))
    settings |= {"prefix": prefix, "dtype": dtype, "int8": int8}
    return encoder, ShardSettings(str(model), sha256, encoder.embedding_dimension, **settings)
