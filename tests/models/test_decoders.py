"""Qwen3-Embedding: sentences end in its last token, also cut ones, and a cross-encoder reads its score there."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer
from tokenizers import processors
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cosent.data.pairs import JoinedPairCollator, tokenize_joined
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from tests.support.published import END, TURN, qwen3_embedding

TEXTS = ["我喜欢北京", "怎么还款，如何还款", "我", "红色的苹果" * 6, "今天天气很好"]
FIRST, SECOND = TEXTS[:4], ["北京我不喜欢", "如何还款", "推荐一辆红车" * 3, "我"]
PAIRS = list(zip(FIRST, SECOND, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return qwen3_embedding(tmp_path_factory.mktemp("qwen3"))


def test_vectors_of_cut_texts_are_those_of_sentence_transformers(folder):
    """Fails if the padding token that ends a text is taken for padding, or truncation takes it away."""
    ours = SentenceEncoder.from_pretrained(folder, max_length=6)
    ids = ours.tokenizer(TEXTS[3], truncation=True, max_length=6)["input_ids"]
    assert ids[-1] == ours.tokenizer.pad_token_id, "nothing to mistake"
    theirs = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})  # published in bfloat16
    theirs.max_seq_length = 6
    for packing in (True, False):
        ours.packing = packing
        np.testing.assert_allclose(ours.encode(TEXTS, normalize_embeddings=True), theirs.encode(TEXTS), atol=1e-6)


@torch.no_grad()
def test_the_score_is_read_from_the_last_token_everywhere(folder, tmp_path):
    """Fails if a score comes from padding, or from a token before the last, here or where the folder is served.

    transformers reads the last token that is not the padding token, vLLM the last one: both must be the same.
    """
    encoder = CrossEncoder.from_pretrained(folder, num_labels=1, seed=3).eval()
    scores = encoder.similarity(FIRST, SECOND)
    pairs = [encoder.tokenizer(a, b, return_tensors="pt")["input_ids"] for a, b in PAIRS]
    assert all(ids[0, -1] == encoder.tokenizer.convert_tokens_to_ids(END) for ids in pairs)
    by_hand = [encoder.model.score(encoder.backbone(ids).last_hidden_state[0, -1]).item() for ids in pairs]
    np.testing.assert_allclose(scores, by_hand, atol=1e-6)
    assert np.std(scores) > 0.01, "all scores are alike: nothing was compared"

    tokens = tokenize_joined({"sentence1": FIRST, "sentence2": SECOND}, encoder.tokenizer, 64)
    rows = [(ids, first, {}) for ids, first in zip(tokens["input_ids"], tokens["first_tokens"], strict=True)]
    batch = JoinedPairCollator.from_tokenizer(encoder.tokenizer)(rows)
    np.testing.assert_allclose(encoder(**batch)["scores"], scores, atol=1e-6)  # as in training

    encoder.save_pretrained(tmp_path)
    np.testing.assert_array_equal(CrossEncoder.from_pretrained(str(tmp_path)).similarity(FIRST, SECOND), scores)
    theirs = TheirCrossEncoder(str(tmp_path), device="cpu")
    for side in ("left", "right"):
        theirs.tokenizer.padding_side = side
        np.testing.assert_allclose(theirs.predict(PAIRS), scores, atol=1e-6)


@pytest.mark.parametrize("padding", [END, TURN])
@torch.no_grad()
def test_a_trained_head_keeps_its_token(folder, tmp_path, padding):
    """Fails if a classifier of somebody else, which reads another token, is loaded with other scores than theirs."""
    words = AutoTokenizer.from_pretrained(folder)
    options = {"num_labels": 1, "pad_token_id": words.convert_tokens_to_ids(padding), "dtype": torch.float32}
    AutoModelForSequenceClassification.from_pretrained(folder, **options).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    alone = [plain(**words(a, b, return_tensors="pt")).logits.item() for a, b in PAIRS]
    encoder = CrossEncoder.from_pretrained(str(tmp_path), num_labels=1)
    np.testing.assert_allclose(encoder.similarity(FIRST, SECOND), alone, atol=1e-6)
    assert encoder.tokenizer.pad_token == padding


@pytest.mark.parametrize("words", ["no token between two sentences", "pad_token"])
def test_a_tokenizer_that_scores_cannot_be_read_behind(folder, tmp_path, words):
    """Fails if a decoder that puts nothing between two sentences gives "ab" + "c" and "a" + "bc" one score, or a score
    is read one token too early, since padding cannot be told from the end."""
    SentenceEncoder.from_pretrained(folder).backbone.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if words == "pad_token":
        tokenizer.eos_token = END
        tokenizer._extra_special_tokens = []
    else:
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=words):
        CrossEncoder.from_pretrained(str(tmp_path), num_labels=1)
