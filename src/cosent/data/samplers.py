"""Sampler that draws every batch from one corpus."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from torch.utils.data import Sampler

from cosent.errors import InputError

LONGEST_EPOCH = 100  # times the steps that read every corpus once


class CorpusSampler(Sampler[int]):
    """Draws from several corpora in turn, one corpus per batch, so that labels of different kinds are never compared.

    An epoch ends when every row of every corpus has been visited: the corpus that is longest for its weight is read
    once, the others start over in a new order. Row numbers run through the corpora in order, as in `ConcatDataset`.

    Args:
        lengths: rows of each corpus.
        block: rows that must come from one corpus: the global batch, over all devices and accumulation steps.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
        weights: share of the blocks of each corpus, up to a common factor; default: equal shares.
    """

    def __init__(self, lengths: list[int], block: int, seed: int, weights: list[float] | None = None):
        self.lengths = lengths
        self.block = block
        self.seed = seed
        self.turns = turns([-(-length // block) for length in lengths], weights or [1.0] * len(lengths))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.turns) * self.block

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        offsets = np.cumsum([0, *self.lengths[:-1]])
        streams = [endless(length, offset, generator) for length, offset in zip(self.lengths, offsets, strict=True)]
        for corpus in self.turns:
            yield from islice(streams[corpus], self.block)


def turns(blocks: list[int], weights: list[float]) -> list[int]:
    """Assigns blocks to corpora until each corpus has been read in full.

    The next block goes to the corpus that is furthest behind its share: weights 2, 1 result in 0, 1, 0, 0, 1, 0, ...
    """
    shares = np.array(weights) / sum(weights)
    total = float((blocks / shares).max())
    if total > LONGEST_EPOCH * sum(blocks):
        raise InputError(
            f"--corpus_weights {' '.join(f'{weight:g}' for weight in weights)}: reading every corpus once takes "
            f"{total:,.0f} steps in these shares, and {sum(blocks):,} without. Give weights closer together, or leave "
            "corpora of small weights out."
        )
    counts = np.zeros(len(blocks), dtype=int)
    order: list[int] = []
    while (counts < blocks).any():
        order.append(int(np.argmax(shares * (len(order) + 1) - counts)))
        counts[order[-1]] += 1
    return order


def endless(length: int, offset: int, generator: np.random.Generator) -> Iterator[int]:
    """Row numbers `offset .. offset + length - 1` in random order, again and again."""
    while True:
        yield from (offset + generator.permutation(length)).tolist()
