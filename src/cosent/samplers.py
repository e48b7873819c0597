"""Which rows stand together in a batch."""

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Sampler


class CorpusSampler(Sampler[int]):
    """Draws from several corpora in turn, one corpus to a batch, so that labels of different kinds are never compared.

    An epoch ends when every row of every corpus was visited: the corpus that is longest for its weight is read once,
    the others start over in a new order. Rows are numbered through all corpora, one after the other.

    Args:
        lengths: rows of each corpus.
        block: rows that must come from one corpus: the global batch, over all devices and accumulation steps.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
        weights: share of the blocks that each corpus has, up to a common factor; default: equal shares.
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
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        offsets = [sum(self.lengths[:index]) for index in range(len(self.lengths))]
        streams = [endless(length, offset, generator) for length, offset in zip(self.lengths, offsets, strict=True)]
        for corpus in self.turns:
            for _ in range(self.block):
                yield next(streams[corpus])


def turns(blocks: list[int], weights: list[float]) -> list[int]:
    """Which corpus gives each block, until every corpus has given at least `blocks`.

    The next block is that of the corpus that is furthest behind its share: weights 2, 1 give 0, 1, 0, 0, 1, 0, ...
    """
    shares = np.array(weights) / sum(weights)
    given, order = np.zeros(len(blocks), dtype=int), []
    while (given < blocks).any():
        order.append(int(np.argmax(shares * (len(order) + 1) - given)))
        given[order[-1]] += 1
    return order


def endless(length: int, offset: int, generator: torch.Generator) -> Iterator[int]:
    """Row numbers `offset .. offset + length - 1` in random order, again and again."""
    while True:
        for index in torch.randperm(length, generator=generator).tolist():
            yield offset + index
