"""Batches that teach something: an order of the rows in which every batch holds two different labels, where it can."""

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler


class BalancedSampler(Sampler[int]):
    """Visits every row once per epoch, at random, so that as few batches as possible hold one label only.

    A random order is drawn and mended by as few swaps as it takes; nearly all batches are as random draws made them.

    Args:
        labels: what the loss is given, shape `(rows,)`.
        block: rows that are compared with one another: those of one step, over all devices.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
    """

    def __init__(self, labels: np.ndarray, block: int, seed: int):
        self.labels = np.asarray(labels)
        self.block = block
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        order = generator.permutation(len(self.labels))
        yield from mended(order, self.labels[order], self.block, generator).tolist()


def mended(order: np.ndarray, labels: np.ndarray, block: int, generator: np.random.Generator) -> np.ndarray:
    """Swaps rows between blocks until as many blocks as possible hold two different labels.

    A block of one label `a` takes a row of another label from a block that holds at least two of those, and gives a row
    of `a` for it: both are mixed then. When no such block is left, every other block holds at most one row that is not
    `a`, so no further one could be mixed in any order.

    Args:
        order: row numbers, shape `(rows,)`; the last block may be shorter.
        labels: label of each, in this order.

    Returns:
        The same row numbers in the new order.
    """
    order, labels = order.copy(), labels.copy()
    starts = np.arange(0, len(order), block)
    sizes = np.diff(np.append(starts, len(order)))
    lowest, highest = np.minimum.reduceat(labels, starts), np.maximum.reduceat(labels, starts)
    for label in np.unique(lowest[lowest == highest]):
        others = np.add.reduceat(labels != label, starts)  # (blocks,), rows of another label in each
        for poor in np.flatnonzero((others == 0) & (sizes > 1)):
            # A block of a single row can never be mixed, so its row is free to go.
            rich = np.flatnonzero((others > 1) | ((others == 1) & (sizes == 1)))
            if not len(rich):
                break
            giver = generator.choice(rich)
            rows = slice(starts[giver], starts[giver] + sizes[giver])
            given = starts[giver] + generator.choice(np.flatnonzero(labels[rows] != label))
            taken = starts[poor] + generator.integers(sizes[poor])
            order[[given, taken]], labels[[given, taken]] = order[[taken, given]], labels[[taken, given]]
            others[giver], others[poor] = others[giver] - 1, 1
    return order
