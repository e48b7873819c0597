"""Vectors and scores of many sentences: as one at a time, as other libraries ask for them; and wrong input."""

import copy
import logging

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers.util import paraphrase_mining
from tokenizers.processors import TemplateProcessing
from torch import nn

from cosent.compute import onednn
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import sentence_vectors
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.embedding import batch_bounds, embed, quantized
from cosent.models.student import Student
from cosent.search.index import Index

SENTENCES = ["怎么还款", "我喜欢北京", "好", "", "怎么还款", "推荐一辆红车给我的朋友", "今天天气很好" * 9, "好"]


@pytest.fixture(scope="module")
def encoder(tiny_model) -> SentenceEncoder:
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=32)


@pytest.fixture
def cross(tiny_model) -> CrossEncoder:
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_rows_come_back_in_the_order_given(encoder):
    """Fails if a user's vectors belong to other sentences, a repeated sentence has two vectors, or encoding during
    training has dropout or switches it off."""
    vectors = encoder.train().encode(SENTENCES, batch_size=2)
    assert encoder.training and encoder.backbone.training
    encoder.eval()
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    assert vectors.dtype == np.float32 and encoder.encode([]).shape == (0, 32)
    np.testing.assert_array_equal(vectors[0], vectors[4])
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3, "all vectors are alike: nothing was compared"


def test_cut_sentences_are_counted_once_per_row(encoder, cross, caplog):
    """Fails if a user does not learn that the ends of long sentences or pairs were never read."""
    with caplog.at_level(logging.WARNING):
        encoder.encode([*SENTENCES, SENTENCES[6]], batch_size=1)
    assert len(caplog.records) == 1 and "2 of 9 sentences are longer than 32 tokens" in caplog.text
    assert cross.similarity([], []).shape == (0,)
    cross.max_length = 12
    cross.similarity(["好" * 9, "好"], ["坏", "坏"])
    assert "1 of 2 pairs are longer than 12 tokens" in caplog.text


@pytest.mark.parametrize("reorder", [False, True])
def test_onednn_gives_the_same_numbers(reorder, monkeypatch):
    """Fails if the fast linear layers change vectors; 3e-5 is float32 noise over 512 products near 1."""
    torch.manual_seed(0)
    calls, linear = [], onednn.linear
    monkeypatch.setattr(onednn, "linear", lambda *args: calls.append(1) or linear(*args))
    for bias in (True, False):
        layer, inputs = nn.Linear(512, 96, bias=bias), torch.randn(3, 7, 512)
        with torch.inference_mode(), onednn.onednn_linears(layer, reorder):
            torch.testing.assert_close(layer(inputs), onednn.stock_forward(layer, inputs), atol=3e-5, rtol=0)
    assert len(calls) == 2, "the layers were left as they are: nothing was compared"


def test_int8_ranks_like_float32(encoder):
    """If this fails, --int8 loses more than rounding: similar sentences are no longer found."""
    torch.manual_seed(0)
    texts = ["".join(np.random.default_rng(i).choice(list("红色苹果北京天气还款怎么"), 8)) for i in range(30)]
    exact, fast = (model.encode(texts, normalize_embeddings=True) for model in (encoder, quantized(encoder)))
    upper = np.triu_indices(len(texts), 1)
    assert spearmanr((exact @ exact.T)[upper], (fast @ fast.T)[upper]).statistic > 0.99
    assert np.abs(exact - fast).max() > 1e-6, "nothing was quantised"
    assert all(type(module) is not nn.Linear for module in quantized(encoder).modules())


@pytest.mark.parametrize("sentences", [[""], ["好", "", "怎么还款"]], ids=["alone", "among others"])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_sentence_without_a_token_has_zeros(encoder, sentences, normalize):
    """If this fails, an empty sentence stops a job whose tokenizer has no [CLS], or puts NaN in an index."""
    bare = copy.deepcopy(encoder)
    bare.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    settled = []
    vectors, _ = embed(bare, sentences, 8, normalize, settled.append)
    assert np.isfinite(vectors).all() and sum(settled) == len(sentences)
    for sentence, vector in zip(sentences, vectors, strict=True):
        assert (np.abs(vector).sum() == 0) == (sentence == "")
        np.testing.assert_allclose(bare.encode([sentence], normalize_embeddings=normalize)[0], vector, atol=1e-6)
    assert bare.similarity([""], ["好"]) == 0
    for blank in ("", " ", "\u200b\ufeff\n"):
        with pytest.raises(InputError, match="non-empty"):
            encoder.similarity(blank, "好")


def test_what_is_not_a_sentence_or_a_pair_is_named(encoder, cross):
    """Fails if NaN from a table is encoded as the word nan, a string by characters, or a set in any order; or arrays
    and columns of tables, which are no lists, are refused."""
    for sentences, message in (
        (["好", None], "None .* position 1"),
        (3, "int"),
        ({"好", "坏"}, "set"),
    ):
        with pytest.raises(InputError, match=message):
            encoder.encode(sentences)
    for first, second, message in (
        ("好", ["坏"], "str and list"),
        (None, None, "None"),
        ("好", "", "and ''"),
        (["好"], ["好"] * 2, "1 and 2"),
    ):
        for model in (encoder, cross):
            with pytest.raises(InputError, match=message):
                model.similarity(first, second)
    with pytest.raises(InputError, match="batch_size .* 0"):
        encoder.encode(["好"], batch_size=0)
    expected = encoder.encode(["好", "坏"])
    for column in (("好", "坏"), np.array(["好", "坏"]), {1: "好", 2: "坏"}.values()):
        np.testing.assert_array_equal(encoder.encode(column), expected)
        assert cross.similarity(column, column).shape == (2,)


def test_batches_keep_both_bounds():
    """Fails if a batch of long sentences outgrows the memory, or a sentence is left out."""
    lengths = np.array([50, 9, 9, 8, 3, 3, 3, 3])
    assert batch_bounds(lengths, batch_size=3, tokens=20) == [(0, 1), (1, 3), (3, 5), (5, 8)]


def test_what_is_not_finite_leaves_no_model(encoder, cross, tmp_path, job, monkeypatch):
    """Fails if a job prints or stores what a broken model returns, as a verdict or a vector, or does not name the text
    and what helps: float32 only where the weights are not."""
    broken, bad_cross = copy.deepcopy(encoder), copy.deepcopy(cross)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with torch.no_grad():
        broken.backbone.embeddings.word_embeddings.weight[broken.tokenizer("红").input_ids[1]] = torch.nan
        next(bad_cross.model.parameters()).fill_(torch.inf)
    broken.save_pretrained(tmp_path / "broken")
    text, pairs = tmp_path / "sentences.txt", tmp_path / "pairs.csv"
    text.write_text("怎么还款\n红色的苹果\n", encoding="utf-8")
    pairs.write_text("sentence1,sentence2\n怎么还款,如何还款\n苹果,红色的苹果\n", encoding="utf-8")
    for name, *flags in (
        ("encode", "--text", text, "--output", tmp_path / "out.npy"),
        ("similarity", "--pairs", pairs, "--output", tmp_path / "out.csv"),
        ("similarity", "怎么还款", "红色的苹果"),
        ("evaluate", "--pairs", pairs),
    ):
        if name == "evaluate":
            pairs.write_text("sentence1,sentence2,label\n怎么还款,如何还款,1\n苹果,红色的苹果,0\n", encoding="utf-8")
        with pytest.raises(InputError, match="nan.*'红色的苹果'.*copy"):
            job(f"cosent.jobs.{name}", "--model", tmp_path / "broken", *flags)
    assert not list(tmp_path.glob("out*"))
    with pytest.raises(InputError, match="nan.*'红色的苹果'"):
        sentence_vectors(broken, ["怎么还款", "红色的苹果"])
    assert not (tmp_path / "cache").exists()
    with pytest.raises(InputError, match="bfloat16.*float32"):
        broken.bfloat16().encode(["红色的苹果"])
    with pytest.raises(InputError, match="nan.*'甲' and '乙'"):
        bad_cross.similarity(["甲"], ["乙"])


def test_one_text_is_a_list_of_one(tiny_bi, tiny_cross, tiny_student):
    """Fails if a public function takes a single string for a list of characters, or answers it in another way."""
    encoder, cross = SentenceEncoder.from_pretrained(str(tiny_bi)), CrossEncoder.from_pretrained(str(tiny_cross))
    student, index = Student.from_pretrained(str(tiny_student)), Index.of(["怎么还款", "今天天气"], encoder)
    for name, function in (
        ("encode", encoder.encode),
        ("encode_query", encoder.encode_query),
        ("encode_document", encoder.encode_document),
        ("similarity", lambda texts: encoder.similarity(texts, texts)),
        ("similarity of a cross-encoder", lambda texts: cross.similarity(texts, texts)),
        ("search", index.search),
        ("similar_sentences", lambda texts: student.similar_sentences(texts, keep=2, num_samples=2, max_length=8)),
    ):
        single, (listed,) = function("如何还款"), function(["如何还款"])
        if isinstance(single, list):
            assert single == listed, name
        else:
            np.testing.assert_allclose(single, listed, atol=1e-6, err_msg=name)
    assert Index.of("怎么还款", encoder).sentences == ["怎么还款"]
    for function in (index.search, student.similar_sentences):
        with pytest.raises(InputError, match="sentences"):
            function(3)


TEXTS = ["怎么还款", "今天天气很好", "怎么还款", "如何还款"]


def test_encode_takes_what_other_libraries_pass(encoder):
    """Fails if a tensor or shortened vectors differ from the plain array, or a keyword ends in a TypeError."""
    plain = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode(TEXTS, show_progress_bar=None, convert_to_numpy=True), plain)
    np.testing.assert_array_equal(encoder.encode(TEXTS, convert_to_tensor=True), torch.from_numpy(plain))
    short = encoder.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
    expected = plain[:, :8] / np.linalg.norm(plain[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    score, first, second = paraphrase_mining(encoder, TEXTS)[0]
    assert score == pytest.approx(1) and {first, second} == {0, 2}


def test_queries_and_documents_have_their_prompts(encoder):
    """Fails if an encoder with two prompts reads queries as documents in another library."""
    encoder = copy.copy(encoder)
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
