"""Prompts of a folder must mean the same to us and to sentence-transformers."""

import json

import pytest
from sentence_transformers import SentenceTransformer

from cosent.errors import InputError
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.prompts import CROSS_ENCODER, Prompts

TEXTS = {"query": "问句：", "passage": "段落："}


@pytest.mark.parametrize("include_prompt", [True, False])
def test_prompts_that_sentence_transformers_saved_are_read(tiny_model, tmp_path, include_prompt):
    """Fails if a folder of sentence-transformers is served without its prompts."""
    SentenceEncoder.from_pretrained(str(tiny_model)).save_pretrained(tmp_path / "bare")
    model = SentenceTransformer(str(tmp_path / "bare"), prompts=TEXTS, default_prompt_name="query", device="cpu")
    model.set_pooling_include_prompt(include_prompt)
    model.save(str(tmp_path / "prompted"))
    read = Prompts.read(str(tmp_path / "prompted"))
    assert read == Prompts(TEXTS | {"document": ""}, "query", include_prompt)
    assert read.config() == {"prompts": TEXTS | {"document": ""}, "default_prompt_name": "query"}


def test_a_bare_folder_has_none_and_a_cross_encoders_are_not_a_bi_encoders(tiny_model, tmp_path):
    """Fails if the default prompt of a reranker is put in front of every sentence that is embedded."""
    assert Prompts.read(str(tiny_model)) == Prompts()
    saved = {"model_type": "CrossEncoder", "prompts": TEXTS, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(saved), encoding="utf-8")
    assert Prompts.read(str(tmp_path)) == Prompts()
    assert Prompts.read(str(tmp_path), CROSS_ENCODER) == Prompts(TEXTS, "query")


def test_text_of_a_prompt():
    """Fails if another prompt is read than the one that was requested."""
    prompts = Prompts(TEXTS, "query")
    assert prompts.text() == "问句："
    assert prompts.text(prompt_name="passage") == "段落："
    assert prompts.text("别的：") == "别的："
    assert prompts.text("") == "", "an empty prompt switches the default one off"
    assert Prompts(TEXTS).text() == ""


def test_unknown_names_are_refused():
    """Fails if a misspelt name is read as no prompt at all."""
    with pytest.raises(InputError, match="no prompt called 'question' \\(query, passage\\)"):
        Prompts(TEXTS).text(prompt_name="question")
    with pytest.raises(InputError, match="it has none"):
        Prompts().text(prompt_name="query")
    with pytest.raises(InputError, match="one of the two"):
        Prompts(TEXTS).text("别的：", "query")
    with pytest.raises(InputError, match="default_prompt_name is 'question'.*query, passage"):
        Prompts(TEXTS, "question")
