"""Rows of different corpora never stand in one batch; batches hold two labels wherever the counts allow."""

import numpy as np
import pytest

from cosent.data.samplers import CorpusSampler, turns
from cosent.errors import InputError


def test_every_block_comes_from_one_corpus_and_every_row_of_the_longest_is_visited():
    """Fails if labels of different kinds are ranked against each other, or training pairs are never seen."""
    sampler = CorpusSampler([10, 3], block=4, seed=1)
    order = list(sampler)
    assert len(order) == len(sampler) == (3 + 2) * 4
    blocks = [order[start : start + 4] for start in range(0, len(order), 4)]
    for index, block in enumerate(blocks):
        assert all((row < 10) == (index % 2 == 0) for row in block), block
    assert set(range(10)) <= set(order) and {10, 11, 12} <= set(order)


def test_the_order_depends_on_seed_and_epoch_alone():
    """Fails if a run cannot be resumed, or sees every epoch in the same order."""
    sampler, again = CorpusSampler([50, 50], 5, seed=1), CorpusSampler([50, 50], 5, seed=1)
    first = list(sampler)
    assert first == list(again)
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert second != list(CorpusSampler([50, 50], 5, seed=2)), "the seeds of a study would share orders"


def test_weights_are_shares_of_the_batches():
    """Fails if --corpus_weights 2 1 gives other shares, an epoch ends before a corpus was read once, or would never
    end."""
    assert turns([4, 2], [2.0, 1.0]) == [0, 1, 0, 0, 1, 0]
    assert turns([1, 3], [2.0, 1.0]).count(1) == 3 and turns([1, 3], [2.0, 1.0]).count(0) in (5, 6)
    order = list(CorpusSampler([12, 12], block=4, seed=1, weights=[3, 1]))
    assert sum(row < 12 for row in order) == 3 * sum(row >= 12 for row in order) - 4  # it ends with the second corpus
    assert set(order) == set(range(24))
    assert len(turns([100, 100], [1.0, 199.0])) > 99 * 200
    with pytest.raises(InputError, match=r"--corpus_weights 1 201: .* 20,200 .* 200 "):
        turns([100, 100], [1.0, 201.0])
    with pytest.raises(InputError, match="--corpus_weights"):
        turns([100, 100], [1e-9, 1.0])


def balanced(labels: np.ndarray, block: int, seed: int) -> CorpusSampler:
    return CorpusSampler([len(labels)], block, seed, labels=labels)


def dead(labels: np.ndarray, order: list[int], block: int) -> int:
    blocks = [labels[order[start : start + block]] for start in range(0, len(order), block)]
    return sum(len(np.unique(block)) < 2 for block in blocks)


@pytest.mark.parametrize(
    "counts, block, unavoidable",
    [
        ({0: 82, 1: 18}, 8, 0),  # 13 batches, 18 positives
        ({0: 50, 1: 5}, 5, 6),  # 11 batches, of which 5 can have a positive
        ({0: 40, 1: 40}, 2, 0),  # every batch one of each
        ({0: 3, 1: 3, 2: 3}, 3, 0),
        ({0: 8, 1: 1}, 4, 2),  # 4, 4 and a batch of one row, which can never be mixed: one of 3 is alive
        ({0: 1, 1: 40}, 4, 10),  # 11 batches, 1 negative
    ],
)
def test_no_more_dead_batches_than_counts_force(counts, block, unavoidable):
    """Fails if steps are spent on batches of one label that another order would have mixed, or rows are lost."""
    labels = np.repeat(list(counts), list(counts.values())).astype(np.float32)
    plain = 0
    for seed in range(20):
        order = list(balanced(labels, block, seed))
        assert sorted(order) == list(range(len(labels)))
        assert dead(labels, order, block) == unavoidable
        plain += dead(labels, np.random.default_rng(seed).permutation(len(labels)).tolist(), block)
    assert plain > 20 * unavoidable or unavoidable, "a plain order does as well: the case shows nothing"


def test_the_order_is_random_and_repeatable():
    """Fails if epochs repeat, ranks draw different orders, or mending piles the rare label up at one end."""
    labels = (np.arange(400) % 10 == 0).astype(np.float32)
    sampler, again = balanced(labels, 4, seed=1), balanced(labels, 4, seed=1)
    first = list(sampler)
    assert first == list(again) and len(sampler) == 400
    sampler.set_epoch(1)
    assert list(sampler) != first
    positions = [np.flatnonzero(labels[list(balanced(labels, 4, seed))]).mean() for seed in range(30)]
    assert np.mean(positions) == pytest.approx(199.5, abs=15)


def test_corpora_are_balanced_one_by_one():
    """Fails if --balanced_batches moves rows between corpora, or leaves batches of one label inside a corpus."""
    labels = np.array([0] * 30 + [1] * 10 + [0] * 8 + [1] * 4, dtype=np.float32)
    sampler = CorpusSampler([40, 12], 8, seed=2, labels=labels, pool=4)
    order = np.array(list(sampler))
    assert len(order) == len(sampler) and sorted(order[order < 40]) == list(range(40))
    assert {number // 8 for number in np.flatnonzero(order < 40)} == set(range(0, 2 * 5, 2))
    assert dead(labels, order.tolist(), 4) == 0
    assert dead(labels, list(CorpusSampler([40, 12], 8, seed=2)), 4) > 0
