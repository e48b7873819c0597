"""Batches of several corpora: one corpus each, in the shares of their weights."""

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
