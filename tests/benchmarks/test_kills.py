"""Training that is really killed (`benchmarks/kills.py` does it more often)."""

import random

import pytest

from benchmarks.kills import count


@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(tiny_model, make_corpus, pairs, tmp_path):
    """Fails if SIGKILL, also in the middle of saving, changes a bit of the final weights."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:32]})
    random.seed(2)
    counts = count(corpus, tmp_path, 2, str(tiny_model))
    assert counts["kills"] == 2 and counts["kills_while_saving"] >= 1
    assert counts["bit_equal"] == counts["runs"] >= 1
