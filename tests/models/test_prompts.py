"""Prompts of a folder must mean the same to us and to sentence-transformers."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder

from cosent.data.pairs import PairCollator, tokenize_apart
from cosent.errors import InputError
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.layout import CROSS_ENCODER, read_prompts
from cosent.models.prompts import Prompts, warn_of_other_prompts

TEXTS = {"query": "问句：", "passage": "段落："}
SENTENCES = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123", "怎么还款", "", "好"]


def test_text_of_a_prompt(tiny_model, tmp_path):
    """Fails if another prompt is read than the one that was requested, or a misspelt name is read as none."""
    prompts = Prompts(TEXTS, "query")
    assert prompts.text() == "问句：" and prompts.text(prompt_name="passage") == "段落："
    assert prompts.text("别的：") == "别的：" and Prompts(TEXTS).text() == ""
    assert prompts.text("") == "", "an empty prompt switches the default one off"
    for ask, message in (
        (lambda: prompts.text(prompt_name="question"), "'question'.*query, passage"),
        (lambda: prompts.text("别的：", "query"), "'别的：'.*'query'"),
        (lambda: prompts.sides(["一", "二", "三"]), "got 3"),
        (lambda: Prompts(TEXTS, "question"), "'question'.*query, passage"),
    ):
        with pytest.raises(InputError, match=message):
            ask()
    saved = {"model_type": "CrossEncoder", "prompts": TEXTS, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(saved), encoding="utf-8")
    assert read_prompts(str(tmp_path), CROSS_ENCODER) == prompts
    assert read_prompts(str(tmp_path)) == read_prompts(str(tiny_model)) == Prompts(), "of a reranker, not for sentences"


def test_training_reads_what_encode_reads(tiny_model):
    """Fails if a model is trained on other tokens than it is served with; the sides may differ."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=24).eval()
    encoder.prompts = Prompts(TEXTS)
    prefixes = encoder.prefixes(prompt_name=["query", "passage"])
    columns = {"sentence1": SENTENCES, "sentence2": SENTENCES[::-1]}
    tokens = tokenize_apart(columns, encoder.tokenizer, encoder.max_length, prefixes)
    assert sum(tokens["truncated"]) == 2
    pairs = list(zip(tokens["input_ids1"], tokens["input_ids2"], [{}] * len(SENTENCES), strict=True))
    batch = PairCollator.from_tokenizer(encoder.tokenizer)(pairs)
    with torch.no_grad():
        outputs = BiEncoder(encoder)(**batch)
    for side, (name, column) in enumerate(zip(TEXTS, columns.values(), strict=True)):
        expected = encoder.encode(column, prompt_name=name)
        np.testing.assert_allclose(outputs["embeddings"][:, side], expected, atol=1e-5)
    scores = encoder.similarity(*columns.values(), prompt_name=["query", "passage"])
    np.testing.assert_allclose(outputs["scores"], scores, atol=1e-6)
    other = encoder.similarity(*columns.values(), prompt=["段落：", "问句："])
    assert np.abs(scores - other).max() > 1e-4, "the sides make no difference: nothing was compared"
    assert encoder.similarity("好", "好", prompt="问句：") == pytest.approx(1)
    assert (
        encoder.similarity("问句：好", "段落：好")
        == encoder.similarity("好", "好", prompt=["问句：", "段落："])
        < 0.9999
    )


def test_prompts_without_room_for_a_sentence(tiny_model):
    """Fails if every sentence gets the same vector, that of a prompt which is cut itself."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=8)
    assert encoder.encode(["好", "坏"], prompt="一二三四五").shape == (2, 32)  # [CLS] 5 1 [SEP]
    with pytest.raises(InputError, match=r"8 tokens.* 8\."):
        encoder.encode(["好"], prompt="一二三四五六")


def test_a_cross_encoder_reads_its_prompt_in_front_of_the_pair(tiny_model, tmp_path):
    """Fails if a reranker with an instruction scores otherwise in sentence-transformers, before or after saving."""
    ours = CrossEncoder.from_pretrained(str(tiny_model), 1)
    first, second = ["好", "我喜欢北京"], ["坏", "今天天气不错"]
    bare = ours.similarity(first, second)
    ours.prompts = Prompts({"task": "判断："}, "task")
    ours.save_pretrained(tmp_path / "ours")
    theirs = TheirCrossEncoder(str(tmp_path / "ours"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    again = CrossEncoder.from_pretrained(str(tmp_path / "theirs"))
    assert again.prompts == ours.prompts
    for options in ({}, {"prompt": "别的："}, {"prompt": ""}):
        expected = theirs.predict(list(zip(first, second, strict=True)), **options)
        for model in (ours, again):
            np.testing.assert_allclose(model.similarity(first, second, **options), expected, atol=1e-6)
    assert np.abs(ours.similarity(first, second) - bare).max() > 1e-5, "the prompt makes no difference"
    with pytest.raises(InputError, match="got '一' and '二'"):
        ours.similarity(first, second, prompt=["一", "二"])
    CrossEncoder.from_pretrained(str(tiny_model), 1).save_pretrained(tmp_path / "ours")
    assert not (tmp_path / "ours" / "modules.json").exists(), "a reranker without prompts is a plain classifier"


@pytest.mark.parametrize(
    ("default", "sides", "words"),
    [
        ("query", ("别的：", "别的："), "has the prompt '问句：', and reads the prompt '别的：' here"),
        ("query", ("",), "and reads no prompt"),
        ("query", ("问句：",), None),
        (None, ("别的：",), None),
    ],
)
def test_a_prompt_other_than_the_default_of_a_folder(default, sides, words, tmp_path, caplog):
    """Fails if --prompt takes the place of the prompt of a public folder without a word."""
    warn_of_other_prompts(str(tmp_path), Prompts(TEXTS, default), *sides)
    assert [words in line for line in caplog.messages] == ([] if words is None else [True])


def test_names_after_training():
    """Fails if a model that was trained with a prompt is served without it, or with one of the two that differ."""
    named, bare = Prompts(TEXTS, "query"), Prompts()
    assert named.trained_with(("问句：", "问句：")) == named
    assert named.trained_with(("段落：", "段落：")) == Prompts(TEXTS, "passage")
    assert named.trained_with(("", "")) == named.trained_with(("问句：", "段落：")) == Prompts(TEXTS)
    assert bare.trained_with(("别的：", "别的：")) == Prompts({"default": "别的："}, "default")
    assert bare.trained_with(("", "二")) == Prompts({"query": "", "document": "二"})
    assert bare.trained_with(("", "")) == bare
