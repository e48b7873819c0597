"""Recipes for published models, end to end on tiny random models in the layout of the published folders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

from cosent import evaluate, similarity
from cosent.cli import parse
from cosent.evaluation.significance import spearman
from cosent.models.auto import load_model
from cosent.models.cross_encoder import CrossEncoder
from tests import published

pytestmark = pytest.mark.slow
RECIPES = Path(__file__).parents[1] / "recipes"
LAYOUTS = {
    "bi_encoder/qwen3_embedding_lora": published.qwen3_embedding,
    "bi_encoder/bge_zh": published.bge_zh,
    "bi_encoder/modernbert": published.chinese_modernbert,
    "cross_encoder/bge_reranker": published.bge_reranker,
    "cross_encoder/qwen3_lora": published.qwen3_embedding,
}
PROMPT = "Instruct: Retrieve semantically similar text\nQuery:"
FIRST, SECOND = ["我喜欢北京", "怎么还款", "红色的苹果" * 4], ["我不喜欢北京", "如何还款", "推荐一辆红车"]


NIGHTLY = {"bi_encoder/modernbert": pytest.mark.matrix}


@pytest.fixture(params=[pytest.param(name, marks=NIGHTLY.get(name, ())) for name in LAYOUTS])
def trained(request, train, make_corpus, pairs, tmp_path) -> tuple[str, str, str]:
    """The name of a recipe, the folder it started from, and the one that its training left."""
    start = LAYOUTS[request.param](tmp_path / "published")
    corpus = make_corpus({split: pairs for split in ("train", "validation", "test")})
    flags = ("--config", str(RECIPES / f"{request.param}.yaml"), "--model_name_or_path", start)
    return request.param, start, str(train(corpus, *flags))


def theirs(name: str, folder: str, first: list[str], second: list[str]) -> np.ndarray:
    """Scores of pairs by sentence-transformers."""
    if name.startswith("cross_encoder"):
        return TheirCrossEncoder(folder, device="cpu").predict(list(zip(first, second, strict=True)))
    vectors = SentenceTransformer(folder, device="cpu").encode(first + second)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)


def test_a_recipe_from_training_to_serving(trained, pairs, capsys):
    """Fails if a recipe for a published model stops on the way, or is served with other scores than it was tested with.

    Train, evaluate, similarity, sentence-transformers.
    """
    name, start, folder = trained
    ours = load_model(folder).similarity(FIRST, SECOND)
    np.testing.assert_allclose(ours, theirs(name, folder, FIRST, SECOND), atol=1e-6)
    before = load_model(start) if name != "cross_encoder/qwen3_lora" else CrossEncoder.from_pretrained(start, 1)
    assert np.abs(ours - before.similarity(FIRST, SECOND)).max() > 1e-3, "nothing was learnt"

    record = json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    corpus = record["corpora"]["made_up"]["folder"]
    evaluate.main(*parse(["--model", folder, "--corpus", corpus, "--device", "cpu"], *evaluate.ARGUMENTS))
    measured = json.loads(capsys.readouterr().out)
    scores = theirs(name, folder, [first for first, _, _ in pairs], [second for _, second, _ in pairs])
    assert measured["spearman"] == pytest.approx(spearman(scores, [label for _, _, label in pairs]), abs=5e-3)
    printed = [text for pair in zip(FIRST, SECOND, strict=True) for text in pair]
    similarity.main(*parse(["--model", folder, "--device", "cpu", *printed], *similarity.ARGUMENTS))
    lines = capsys.readouterr().out.splitlines()
    scores = [float(next(field for field in line.split() if "." in field)) for line in lines if line.strip()][-3:]
    np.testing.assert_allclose(scores, ours, atol=1e-4)
    MORE.get(name, lambda start, folder: None)(start, folder)


def check_default_prompt(start: str, folder: str) -> None:
    """A tuned Qwen3-Embedding is served with the prompt that it was trained with, and still normalised."""
    saved = json.loads(Path(folder, "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert saved["prompts"][saved["default_prompt_name"]] == PROMPT
    model = SentenceTransformer(folder, device="cpu")
    vectors = model.encode(FIRST)
    np.testing.assert_allclose(load_model(folder).encode(FIRST), vectors, atol=1e-6)
    assert np.abs(vectors - model.encode(FIRST, prompt="")).max() > 0.01, "the prompt does nothing"
    check_normalised(start, folder)


def check_normalised(start: str, folder: str) -> None:
    """The Normalize module of the starting folder is still there."""
    vectors = SentenceTransformer(folder, device="cpu").encode(FIRST)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def check_fresh_head(start: str, folder: str) -> None:
    """The fresh head of a decoder is trained, not left at random, and nothing that LoRA freezes has moved."""
    fresh, tuned = CrossEncoder.from_pretrained(start, 1), CrossEncoder.from_pretrained(folder)
    assert (fresh.model.score.weight - tuned.model.score.weight).abs().max() > 1e-4
    frozen = [name for name, _ in tuned.model.named_parameters() if "embed_tokens" in name or "norm" in name]
    assert frozen
    for name in frozen:
        assert torch.equal(tuned.model.get_parameter(name), fresh.model.get_parameter(name)), name
    assert tuned.model.config.pad_token_id == tuned.tokenizer.pad_token_id != tuned.tokenizer("我")["input_ids"][-1]


MORE = {
    "bi_encoder/qwen3_embedding_lora": check_default_prompt,
    "bi_encoder/bge_zh": check_normalised,
    "cross_encoder/qwen3_lora": check_fresh_head,
}
