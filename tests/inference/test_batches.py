"""Batches with two bounds, and input that is not text."""

from typing import get_overloads, get_type_hints

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.inference.embedding import batch_bounds
from cosent.models.bi_encoder import SentenceEncoder, TextModel
from cosent.models.cross_encoder import CrossEncoder


@pytest.fixture(scope="module")
def encoder(tiny_model) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=32)


@pytest.fixture(scope="module")
def cross(tiny_model) -> CrossEncoder:
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1, max_length=32)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [("我喜欢北京", "list of sentences"), (["好", None], "None .* at position 1"), ([3.5], "3.5 .* position 0"),
     (None, "NoneType"), (3, "int"), ((text for text in "好坏"), "generator"), ({"好", "坏"}, "set"),
     ({"好": 1}, "dict")],
)  # fmt: skip
def test_what_is_not_a_sentence_is_named(encoder, sentences, message):
    """Fails if NaN from a table is encoded as the word nan, a string by characters, or a set in any order."""
    with pytest.raises(InputError, match=message):
        encoder.encode(sentences)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [("好", None, "str and NoneType"), ("好", ["坏"], "str and list"), (["好"], "坏", "list and str"),
     (None, None, "None"), ("", "", "''"),
     ("好", "", "'好' and ''"), (["好"], ["好", "坏"], "1 and 2"), (["好"], {"坏"}, "set")],
)  # fmt: skip
def test_what_is_not_a_pair_is_named(encoder, cross, first, second, message):
    """Fails if two empty strings are equal, or one wrong argument is reported as another's mistake."""
    for model in (encoder, cross):
        with pytest.raises(InputError, match=message):
            model.similarity(first, second)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing_is_refused(encoder, cross, size):
    """Fails if `batch_size=0` is taken for 1."""
    with pytest.raises(InputError, match=f"batch_size .* {size}"):
        encoder.encode(["好"], batch_size=size)
    with pytest.raises(InputError, match=f"batch_size .* {size}"):
        cross.similarity(["好"], ["坏"], batch_size=size)


def test_any_column_of_text_is_taken(encoder, cross):
    """Fails if arrays and columns of tables, which are no lists, are refused."""
    expected = encoder.encode(["好", "坏"])
    for column in (("好", "坏"), np.array(["好", "坏"]), {1: "好", 2: "坏"}.values()):
        np.testing.assert_array_equal(encoder.encode(column), expected)
        assert cross.similarity(column, column).shape == (2,)


def test_the_type_of_a_similarity():
    """Fails if a type checker does not know that two strings have a float, and two lists an array."""
    types = [get_type_hints(one) for one in get_overloads(TextModel.similarity)]
    assert [(found["sentences1"], found["return"]) for found in types] == [(str, float), (list[str], np.ndarray)]


def test_batches_keep_both_bounds():
    """Fails if a batch of long sentences outgrows the memory, or a sentence is left out."""
    lengths = np.array([50, 9, 9, 8, 3, 3, 3, 3])
    bounds = batch_bounds(lengths, batch_size=3, tokens=20)
    assert bounds == [(0, 1), (1, 3), (3, 5), (5, 8)]
