"""Recipes for published models, end to end on tiny random models in the layout of the published folders."""

import json
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

from cosent.evaluation.significance import spearman
from cosent.models import load_model
from tests.support import published

RECIPES = Path(__file__).parents[2] / "recipes"
# A bi-encoder with LoRA, and a cross-encoder without; more layouts and heads: tests/models.
LAYOUTS = {
    "bi_encoder/qwen3_embedding_lora": published.qwen3_embedding,
    "cross_encoder/bge_reranker": published.bge_reranker,
}
PROMPT = "Instruct: Retrieve semantically similar text\nQuery:"


def theirs(name: str, folder: str, first: list[str], second: list[str]) -> np.ndarray:
    """Scores of pairs by sentence-transformers."""
    if name.startswith("cross_encoder"):
        return TheirCrossEncoder(folder, device="cpu").predict(list(zip(first, second, strict=True)))
    vectors = SentenceTransformer(folder, device="cpu").encode(first + second)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6, err_msg="the Normalize is lost")
    return (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_recipe_from_training_to_serving(name, train, evaluate, made_up, pairs, tmp_path):
    """Fails if a recipe for a published model stops on the way, or is served with other scores than it was tested with.

    Train, evaluate, load_model, sentence-transformers.
    """
    start = LAYOUTS[name](tmp_path / "published")
    folder = str(train(made_up, "--config", str(RECIPES / f"{name}.yaml"), "--model_name_or_path", start))
    first, second, labels = map(list, zip(*pairs[32:], strict=True))
    model, expected = load_model(folder), theirs(name, folder, first, second)
    np.testing.assert_allclose(model.similarity(first, second), expected, atol=1e-6)
    assert np.abs(expected - load_model(start).similarity(first, second)).max() > 1e-3, "nothing was learnt"
    measured, _ = evaluate("--corpus", made_up, "--device", "cpu", model=folder)
    assert measured["spearman"] == pytest.approx(spearman(expected, labels), abs=5e-3)
    if name == "bi_encoder/qwen3_embedding_lora":  # served with the prompt that it was trained with
        saved = json.loads(Path(folder, "config_sentence_transformers.json").read_text(encoding="utf-8"))
        assert saved["prompts"][saved["default_prompt_name"]] == PROMPT
        assert np.abs(model.encode(first) - model.encode(first, prompt="")).max() > 0.01, "the prompt does nothing"
