"""Scores of many pairs."""

import logging

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.models.cross_encoder import CrossEncoder

FIRST = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧", "好", "怎么还款", "WiFi密码是123", "红色的苹果"]
SECOND = ["我不喜欢北京", "天气好", "今天天气不错，我们一起去公园散步吧" * 2, "如何还款", "密码", "推荐一辆红车"]


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_scores_do_not_depend_on_the_batch(encoder):
    """Fails if pairs come back in another order, or a pair sees the others of its batch."""
    together = encoder.similarity(FIRST, SECOND)
    np.testing.assert_allclose(together, encoder.similarity(FIRST, SECOND, batch_size=2), atol=1e-6)
    alone = [encoder.similarity(a, b) for a, b in zip(FIRST, SECOND, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    encoder.packing = False
    np.testing.assert_allclose(together, encoder.similarity(FIRST, SECOND), atol=1e-6)
    assert encoder.training and len(set(together.tolist())) == 6


def test_too_long_pairs_are_reported(encoder, caplog):
    """Fails if the end of a pair is not read and nobody is told."""
    encoder.max_length = 12
    with caplog.at_level(logging.WARNING):
        encoder.similarity(["好" * 9, "好"], ["坏", "坏"])
    assert "1 of 2 pairs are longer than 12 tokens" in caplog.text


def test_what_is_no_pair(encoder):
    """Fails if columns of different length are zipped to the shorter one, or a dropout of 1.5 ends in a stack trace."""
    with pytest.raises(InputError, match="row by row, got 2 and 1"):
        encoder.similarity(["好", "坏"], ["好"])
    assert encoder.similarity([], []).shape == (0,)
    with pytest.raises(InputError, match="--dropout is a probability"):
        CrossEncoder.from_pretrained("mini", dropout=1.5)
    with pytest.raises(InputError, match="no-such-model"):
        CrossEncoder.from_pretrained("no-such-model")
