"""Samplers that decide which rows share a batch."""

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Sampler

from cosent.errors import InputError

LONGEST_EPOCH = 100  # times the steps that read every corpus once


def choose_sampler(
    dataset: Dataset, block: int, pool: int, seed: int, weights: list[float] | None, balanced: bool
) -> Sampler[int] | None:
    """Chooses the sampler of a training set: one corpus per batch, mixed labels in a batch, or both.

    Args:
        dataset: a `PairDataset`, or a `ConcatDataset` of several corpora.
        balanced: swap rows so that as few pools as possible hold one label only.

    Returns:
        None where neither is needed: the trainer's own random order will do.
    """
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else [dataset]
    labels = labels_of_rows(dataset) if balanced else None
    if len(parts) == 1 and labels is None:
        return None
    return CorpusSampler([len(part) for part in parts], block, seed, weights, labels, pool)  # type: ignore[arg-type]


class CorpusSampler(Sampler[int]):
    """Draws from several corpora in turn, one corpus per batch, so that labels of different kinds are never compared.

    An epoch of one corpus visits each row once. Of several, it ends when every row of every corpus has been visited:
    the corpus that is longest for its weight is read once, the others start over in a new order. Row numbers run
    through the corpora in order, as in `ConcatDataset`.

    Args:
        lengths: rows of each corpus.
        block: rows that must come from one corpus: the global batch, over all devices and accumulation steps.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
        weights: share of the blocks of each corpus, up to a common factor; default: equal shares.
        labels: shape `(rows of all corpora,)`; with them, rows of a corpus are swapped as `mix_labels` does.
        pool: rows that are compared with one another, a divisor of `block`; default: `block`.
    """

    def __init__(
        self,
        lengths: list[int],
        block: int,
        seed: int,
        weights: list[float] | None = None,
        labels: np.ndarray | None = None,
        pool: int | None = None,
    ):
        self.lengths = lengths
        self.block = block
        self.seed = seed
        self.labels = labels
        self.pool = block if pool is None else pool
        self.turns = turns([-(-length // block) for length in lengths], weights or [1.0] * len(lengths))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.turns) * self.block if len(self.lengths) > 1 else self.lengths[0]

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        rows = islice(self.draw(generator), len(self))
        if self.labels is None:
            yield from rows
            return
        order = np.fromiter(rows, np.int64, len(self))
        corpus = np.repeat(self.turns, self.block)[: len(self)]  # of each row
        for number in range(len(self.lengths)):
            own = order[corpus == number]
            order[corpus == number] = mix_labels(own, self.labels[own], self.pool, generator)
        yield from order.tolist()

    def draw(self, generator: np.random.Generator) -> Iterator[int]:
        """Row numbers of an epoch, regardless of their labels."""
        offsets = np.cumsum([0, *self.lengths[:-1]])
        streams = [endless(length, offset, generator) for length, offset in zip(self.lengths, offsets, strict=True)]
        return chain.from_iterable(islice(streams[corpus], self.block) for corpus in self.turns)


def turns(blocks: list[int], weights: list[float]) -> list[int]:
    """The corpus of each block, until every corpus has had at least `blocks`.

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
    given = np.zeros(len(blocks), dtype=int)
    order: list[int] = []
    while (given < blocks).any():
        order.append(int(np.argmax(shares * (len(order) + 1) - given)))
        given[order[-1]] += 1
    return order


def endless(length: int, offset: int, generator: np.random.Generator) -> Iterator[int]:
    """Row numbers `offset .. offset + length - 1` in random order, again and again."""
    while True:
        yield from (offset + generator.permutation(length)).tolist()


def mix_labels(order: np.ndarray, labels: np.ndarray, block: int, generator: np.random.Generator) -> np.ndarray:
    """Swaps rows between blocks until as many blocks as possible hold two different labels.

    A block of a single label `a` swaps a row of `a` for a row of another label from a block that has at least two such
    rows: both are mixed then. When no such block is left, every other block has at most one row that is not `a`, so no
    order could mix one more.

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
        # At random: where there are too few rows to mix all blocks, the last blocks would otherwise never be mixed.
        for poor in generator.permutation(np.flatnonzero((others == 0) & (sizes > 1))):
            # A block of a single row can never be mixed, so its row may be taken.
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


def labels_of_rows(dataset: Dataset) -> np.ndarray:
    """Targets of all rows of a `PairDataset`, or of several concatenated ones: shape `(rows,)`."""
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([labels_of_rows(part) for part in dataset.datasets])
    return dataset.labels  # type: ignore[attr-defined]
