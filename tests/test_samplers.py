"""Rows of different corpora never stand in one batch."""

from cosent.samplers import CorpusSampler


def test_every_block_comes_from_one_corpus_and_every_row_of_the_longest_is_visited():
    """Fails if labels of different kinds are ranked against each other, or training pairs are never seen."""
    sampler = CorpusSampler([10, 3], block=4, seed=1)
    order = list(sampler)
    assert len(order) == len(sampler) == 2 * 3 * 4
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
    assert list(sampler) != first
