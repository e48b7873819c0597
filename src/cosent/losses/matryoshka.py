"""Matryoshka: a loss on the first numbers of embeddings too, so that vectors can be cut."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import at_least_float32, check_embeddings


def matryoshka_loss(embeddings: Tensor, loss: Callable[..., Tensor], reads: str, dims: list[int], **targets) -> Tensor:
    """Mean over `dims` of a loss of the first `dim` numbers of every embedding.

    `mean over dim of loss(embeddings[..., :dim])`; a loss of scores gets the cosines of the shortened embeddings.

    Args:
        embeddings: sentence embeddings of shape `(batch, 2, hidden)`.
        loss: takes the embeddings, or scores `(batch,)`, under the name `reads`, and `targets`.
        reads: `embeddings` or `scores`.
        dims: widths, each at most `hidden`; `hidden` itself only if it is one of them.
        targets: passed on to `loss`.

    Source: https://arxiv.org/abs/2205.13147, with equal weights; sentence-transformers' `MatryoshkaLoss` is the sum.
    """
    check_embeddings(embeddings)
    if max(dims) > embeddings.shape[-1]:
        raise ValueError(f"Expected widths of at most {embeddings.shape[-1]}, got {max(dims)}.")
    values = []
    for dim in dims:
        cut = embeddings[..., :dim]
        if reads == "scores":
            first, second = at_least_float32(cut).unbind(1)  # (batch, dim) each
            cut = F.cosine_similarity(first, second)
        values.append(loss(**{reads: cut}, **targets))
    return torch.stack(values).mean()
