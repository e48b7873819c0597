"""Models handed to other libraries: the keywords of sentence-transformers."""

import numpy as np
import pytest
import torch
from sentence_transformers.util import paraphrase_mining

from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder

TEXTS = ["怎么还款", "今天天气很好", "怎么还款", "如何还款"]


@pytest.fixture(scope="module")
def encoder(tiny_bi):
    return SentenceEncoder.from_pretrained(str(tiny_bi))


@pytest.fixture(scope="module")
def cross(tiny_cross):
    return CrossEncoder.from_pretrained(str(tiny_cross))


def test_encode_takes_what_other_libraries_pass(encoder):
    """Fails if `encode` of a single string, a tensor or shortened vectors differs from rows of the plain array."""
    plain = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), plain[0], atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(TEXTS, show_progress_bar=None, convert_to_numpy=True), plain)
    np.testing.assert_array_equal(encoder.encode(TEXTS, convert_to_tensor=True), torch.from_numpy(plain))
    short = encoder.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    expected = plain[:, :8] / np.linalg.norm(plain[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)


def test_paraphrase_mining_takes_the_encoder_itself(encoder):
    """Fails if sentence-transformers' functions, which pass `convert_to_tensor`, end in a TypeError."""
    score, first, second = paraphrase_mining(encoder, TEXTS)[0]
    assert score == pytest.approx(1) and {first, second} == {0, 2}


def test_queries_and_documents_have_their_prompts(tiny_bi):
    """Fails if an encoder with two prompts reads queries as documents in another library."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    encoder.prompts = encoder.prompts.trained_with(("问：", "答："))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS, prompt="问："))
    np.testing.assert_array_equal(encoder.encode_document(TEXTS), encoder.encode(TEXTS, prompt="答："))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS, prompt=""), encoder.encode(TEXTS, prompt=""))


def test_predict_is_similarity_in_another_form(cross):
    """Fails if a reranker's scores depend on the method that asks for them."""
    scores = cross.similarity(["怎么还款"] * len(TEXTS), TEXTS)
    pairs = [("怎么还款", text) for text in TEXTS]
    np.testing.assert_array_equal(cross.predict(pairs), scores)
    assert cross.predict(pairs[1]) == pytest.approx(float(scores[1]), abs=1e-6)
    with pytest.raises(ValueError, match="position 1"):
        cross.predict([("怎么", "还款"), ("怎么还款",)])
