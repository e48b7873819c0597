"""Initialisation of an attention head that looks for the same token in the other sentence of a pair.

A small encoder that has read single lines only hardly learns to compare two sentences: no head looks across. This one
does from the first step, and training refines it. Compare mimetic initialisation, arXiv 2305.09828.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

HEAD, LAYER = 0, 0
SAMPLE = 6000  # tokens
PLACES = 40  # positions at which they are looked at
SEGMENT_SHIFT = 8.0  # distance of the segment embeddings, in standard deviations of the layer's inputs
SAME, OTHER = 10.0, 3.0  # attention logits: of a token with itself; added across sentences, subtracted within one
FLAT = 0.02  # share of the largest spread below which a direction says nothing
MARK = 3.0  # length of the vector that says where a token's match stands


class Inputs(NamedTuple):
    """Inputs of the first layer for a sample of tokens, each of shape `(tokens, hidden)`."""

    first: Tensor  # in sentence 1, at random positions
    second: Tensor  # the same in sentence 2
    tokens: Tensor  # in sentence 1, at a mean position


@torch.no_grad()
def add_matching_head(model: PreTrainedModel, ids: np.ndarray, seed: int = 42) -> None:
    """Replaces head 0 of the first layer of a BERT by one that attends to the same token in the other sentence.

    Query and key hold the token (a linear discriminant of tokens against positions) and the sentence; the value holds
    the token and the sentence where it was found. So a token with a match in the other sentence is marked differently
    from one without, which attends to itself. A line on its own is read as before, but for the head that is replaced:
    segment 0 is left as it is, and segment 1 moves in the direction that the text uses least.

    Args:
        ids: tokens of some text, shape `(tokens,)`: frequent ones are told apart best. A few thousand are enough.
    """
    generator = torch.Generator().manual_seed(seed)
    inputs, free = separate_segments(model.base_model.embeddings, ids, generator)
    attention = model.base_model.encoder.layer[LAYER].attention
    width = attention.self.attention_head_size

    side = inputs.second.mean(dim=0) - inputs.first.mean(dim=0)
    side = side / side.norm()
    along = [(values @ side).mean() for values in (inputs.first, inputs.second)]
    middle, half = (along[0] + along[1]) / 2, (along[1] - along[0]) / 2
    side, offset = side[None] / half, middle / half  # inputs @ side - offset: about -1 in sentence 1, 1 in sentence 2

    centre = inputs.tokens.mean(dim=0)
    noise = torch.cat([inputs.first - inputs.tokens, inputs.second - inputs.tokens])
    tokens = discriminant(inputs.tokens - centre, noise, width - 1)  # (width - 1, hidden)
    same = ((inputs.first - centre) @ tokens.T).pow(2).sum(dim=1).mean() / width**0.5
    code, away = tokens * (SAME / same).sqrt(), (OTHER * width**0.5) ** 0.5
    rows = slice(HEAD * width, (HEAD + 1) * width)
    for layer, what, sign in (
        (attention.self.query, code, away),
        (attention.self.key, code, -away),
        (attention.self.value, tokens / 2, 1.0),
    ):
        layer.weight[rows] = torch.cat([what, sign * side])
        layer.bias[rows] = -torch.cat([what @ centre, sign * offset[None]])
    mark = free - free.mean()
    mark = MARK * mark / mark.norm()
    out = attention.output.dense
    out.weight[:, rows] = 0.02 * torch.randn(len(mark), width, generator=generator)
    out.weight[:, rows.stop - 1] = mark
    out.bias += mark  # takes back what every token of a line on its own adds


def separate_segments(embeddings, ids: np.ndarray, generator: torch.Generator) -> tuple[Inputs, Tensor]:
    """Moves the embedding of segment 1 away from that of segment 0, in a direction that the text hardly uses.

    Returns:
        The inputs of the first layer after it, and another direction that the text hardly uses, of shape `(hidden,)`.
    """
    words, segments, norm = (
        embeddings.word_embeddings.weight,
        embeddings.token_type_embeddings.weight,
        embeddings.LayerNorm,
    )
    places = embeddings.position_embeddings.weight[1:PLACES]
    sample = torch.from_numpy(np.asarray(ids, dtype=np.int64))
    sample = sample[torch.randint(len(sample), (SAMPLE,), generator=generator)]
    plain = words[sample] + places[torch.randint(len(places), (SAMPLE,), generator=generator)] + segments[0]
    first = norm(plain)
    rare = torch.linalg.eigh(torch.cov(first.T)).eigenvectors  # the least used direction first
    direction = rare[:, 0] / norm.weight
    direction = direction - direction.mean()
    direction = direction * first.std() * plain.std(dim=1).mean() / (direction * norm.weight).norm()
    segments[1] = segments[0] + SEGMENT_SHIFT * direction
    second = norm(plain + segments[1] - segments[0])
    return Inputs(first, second, norm(words[sample] + places.mean(dim=0) + segments[0])), rare[:, 1]


def discriminant(signal: Tensor, noise: Tensor, count: int) -> Tensor:
    """Directions in which `signal` varies most next to `noise`, scaled to a variance of 1; shape `(count, hidden)`.

    Linear discriminant analysis. Directions in which the signal hardly varies (few distinct tokens) are 0. Both are of
    shape `(tokens, hidden)` with mean 0.
    """
    between, within = (values.T.double() @ values.double() / len(values) for values in (signal, noise))
    within += torch.eye(len(within)) * (0.01 * within.trace() + 0.02 * between.trace()) / len(within)
    root = torch.linalg.cholesky(within).inverse()
    vectors = torch.linalg.eigh(root @ between @ root.T).eigenvectors[:, -count:].T @ root
    spread = (signal.double() @ vectors.T).pow(2).mean(dim=0).sqrt()[:, None]
    return torch.where(spread > FLAT * spread.max(), vectors / spread, 0.0).to(signal.dtype)
