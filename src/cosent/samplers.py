"""Which rows stand together in a batch."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class CorpusSampler(Sampler[int]):
    """Draws from several corpora in turn, one corpus to a batch, so that labels of different kinds are never compared.

    An epoch visits every row of the longest corpus at least once; shorter ones start over in a new order. Rows are
    numbered through all corpora, one after the other.

    Args:
        lengths: rows of each corpus.
        block: rows that must come from one corpus: the global batch, over all devices and accumulation steps.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
    """

    def __init__(self, lengths: list[int], block: int, seed: int):
        self.lengths = lengths
        self.block = block
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths) * self.rounds * self.block

    @property
    def rounds(self) -> int:
        """Blocks of each corpus in an epoch."""
        return -(-max(self.lengths) // self.block)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        offsets = [sum(self.lengths[:index]) for index in range(len(self.lengths))]
        streams = [endless(length, offset, generator) for length, offset in zip(self.lengths, offsets, strict=True)]
        for _ in range(self.rounds):
            for stream in streams:
                for _ in range(self.block):
                    yield next(stream)


def endless(length: int, offset: int, generator: torch.Generator) -> Iterator[int]:
    """Row numbers `offset .. offset + length - 1` in random order, again and again."""
    while True:
        for index in torch.randperm(length, generator=generator).tolist():
            yield offset + index
