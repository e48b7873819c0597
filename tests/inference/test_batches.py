"""Batches with two bounds, and input that is not text."""

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.inference.batches import batch_bounds
from cosent.modeling.bi_encoder import SentenceEncoder


@pytest.fixture(scope="module")
def encoder(tiny_model) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=32)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [("我喜欢北京", "list of sentences"), (["好", None], "None .* at position 1"), ([3.5], "3.5 .* position 0")],
)
def test_what_is_not_a_sentence_is_named(encoder, sentences, message):
    """Fails if NaN from a table is encoded as the word nan, or a string character by character."""
    with pytest.raises(InputError, match=message):
        encoder.encode(sentences)


def test_batches_keep_both_bounds():
    """Fails if a batch of long sentences outgrows the memory, or a sentence is left out."""
    lengths = np.array([50, 9, 9, 8, 3, 3, 3, 3])
    bounds = batch_bounds(lengths, batch_size=3, tokens=20)
    assert bounds == [(0, 1), (1, 3), (3, 5), (5, 8)]
