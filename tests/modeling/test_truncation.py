"""Vectors cut to their first numbers, here and in sentence-transformers."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.modules import Normalize

SENTENCES = ["怎么还款", "如何还款", "今天天气不错"]


@pytest.mark.parametrize("unit", [False, True])
def test_truncated_vectors_are_the_first_numbers(tiny_model, tmp_path, unit):
    """Fails if a truncated model, saved and loaded here or in sentence-transformers, gives other numbers."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    vectors = encoder.encode(SENTENCES)
    if unit:
        encoder.after_pooling.append(Normalize())
    rules = encoder.rules
    encoder.truncate(8)
    first = vectors[:, :8]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True) if unit else first
    assert encoder.embedding_dimension == 8 and encoder.rules != rules
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-6)
    encoder.save_pretrained(tmp_path)
    loaded = SentenceEncoder.from_pretrained(str(tmp_path))
    assert np.array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path)).encode(SENTENCES), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tiny_model), truncate_dim=8)
    np.testing.assert_allclose(theirs.encode(SENTENCES, normalize_embeddings=unit), expected, atol=1e-6)


def test_a_width_that_a_model_does_not_have(tiny_model):
    """Fails if a wider model is made of zeros."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    for dim in (0, 4096):
        with pytest.raises(InputError, match=str(dim)):
            encoder.truncate(dim)
