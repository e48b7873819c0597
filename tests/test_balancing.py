"""Batches of two labels wherever the counts allow, and every row once."""

import numpy as np
import pytest

from cosent.balancing import BalancedSampler


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
        order = list(BalancedSampler(labels, block, seed))
        assert sorted(order) == list(range(len(labels)))
        assert dead(labels, order, block) == unavoidable
        plain += dead(labels, np.random.default_rng(seed).permutation(len(labels)).tolist(), block)
    assert plain > 20 * unavoidable or unavoidable, "a plain order does as well: the case shows nothing"


def test_the_order_is_random_and_repeatable():
    """Fails if epochs repeat, ranks draw different orders, or mending piles the rare label up at one end."""
    labels = (np.arange(400) % 10 == 0).astype(np.float32)
    sampler, again = BalancedSampler(labels, 4, seed=1), BalancedSampler(labels, 4, seed=1)
    first = list(sampler)
    assert first == list(again) and len(sampler) == 400
    sampler.set_epoch(1)
    assert list(sampler) != first
    positions = [np.flatnonzero(labels[list(BalancedSampler(labels, 4, seed))]).mean() for seed in range(30)]
    assert np.mean(positions) == pytest.approx(199.5, abs=15)
