"""Our folders, read by the rules of Text Embeddings Inference and vLLM (`servers.py`, with versions and sources)."""

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.modules import IDENTITY, Dense, Normalize
from tests.families import LETTERS, save_family
from tests.modeling.servers import Refused, text_embeddings_inference, vectors, vllm

SENTENCES = ["".join(LETTERS[start : start + length]) for start, length in ((0, 5), (7, 12), (30, 1))]
SERVED = ("bert", "roberta", "xlm-roberta", "modernbert", "qwen3")


@pytest.fixture
def saved(tmp_path):
    """Returns a function that saves a bi-encoder of a family as training does, and gives back encoder and folder."""

    def make(family="bert", pooling=None, modules=(), **options):
        start = save_family(family, tmp_path / f"start-{family}")
        encoder = SentenceEncoder.from_pretrained(str(start), pooling=pooling, max_length=24, **options)
        for module in modules:
            encoder.after_pooling.append(module)
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        encoder.save_pretrained(tmp_path / "saved")
        return encoder, tmp_path / "saved"

    return make


def directions(encoder) -> np.ndarray:
    return encoder.encode(SENTENCES, normalize=True)


@pytest.mark.parametrize("family", SERVED)
@pytest.mark.parametrize("server", [text_embeddings_inference, vllm])
def test_bi_encoders_serve_with_their_own_vectors(saved, family, server):
    """Fails if a server refuses a folder, pools otherwise, or reads more tokens than the model was trained on."""
    pooling = "lasttoken" if family == "qwen3" else "mean"
    encoder, folder = saved(family, pooling)
    served = server(folder)
    assert (served.kind, served.pooling, served.max_length, served.warnings) == ("embedding", pooling, 24, [])
    np.testing.assert_allclose(vectors(served, folder, SENTENCES, normalize=True), directions(encoder), atol=1e-5)


@pytest.mark.parametrize("server", [text_embeddings_inference, vllm])
def test_modules_after_the_pooling_reach_the_servers(saved, server):
    """Fails if a Dense (as of `linear_cls`) or Normalize is lost on the way: other vectors, or of another width."""
    modules = [Dense(32, 48, activation_function=IDENTITY, seed=1), Normalize()]
    for pooling, others, width in (("cls", modules, 48), ("linear_cls", (), 32)):
        encoder, folder = saved("bert", pooling, others)
        served = server(folder)
        assert (served.pooling, served.dense, served.warnings) == ("cls", ["2_Dense"], [])
        assert served.normalize == (server is vllm and bool(others))  # TEI normalises on request, and by default
        answers = vectors(served, folder, SENTENCES, normalize=True)
        np.testing.assert_allclose(answers, directions(encoder), atol=1e-5)
        assert answers.shape == (3, width)


def test_folders_of_sentence_transformers_are_refused_where_ours_are_not(saved, tmp_path):
    """Fails if the page about serving is out of date: since 5.4 sentence-transformers leaves out keys that TEI needs.

    vllm-project/vllm#45995 is the same for vLLM, which has read both since #54533.
    """
    _, folder = saved("bert", "mean")
    assert text_embeddings_inference(folder).pooling == "mean"
    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "theirs"))
    with pytest.raises(Refused, match="missing field `pooling_mode_cls_token`"):
        text_embeddings_inference(tmp_path / "theirs")
    shutil.copy(folder / "1_Pooling/config.json", tmp_path / "theirs/1_Pooling/config.json")
    with pytest.raises(Refused, match="missing field `max_seq_length`"):
        text_embeddings_inference(tmp_path / "theirs")
    encoder = SentenceEncoder.from_pretrained(str(tmp_path / "theirs"))
    encoder.save_pretrained(tmp_path / "ours")  # loading and saving is the cure
    assert text_embeddings_inference(tmp_path / "ours").pooling == "mean"


def test_what_the_servers_do_not_compute(saved, tmp_path):
    """Fails if the page about serving promises a pooling or an architecture that a server refuses or computes
    otherwise: the student, ERNIE, ALBERT or ELECTRA, or natively GTE and Nomic."""
    for pooling in ("max", "mean_sqrt_len_tokens", "weightedmean", "attention"):
        with pytest.raises(Refused, match="ooling"):
            text_embeddings_inference(saved("bert", pooling)[1])
    for family in ("roformer", "ernie", "albert", "electra", "nomic_bert", "gte"):
        with pytest.raises(Refused, match="Model is not supported"):
            text_embeddings_inference(saved(family, "mean")[1])
    _, folder = saved("bert", "first_last_mean")
    served = text_embeddings_inference(folder)
    assert served.pooling == "cls" and "WeightedLayerPooling" in served.warnings[0]
    assert vllm(folder).pooling == "mean"
    assert text_embeddings_inference(saved("bert", "cls+mean")[1]).pooling == "cls"
    assert vllm(saved("bert", "max")[1]).warnings
    start = save_family("qwen3", tmp_path / "qwen3")
    CrossEncoder.from_pretrained(str(start), num_labels=1).save_pretrained(tmp_path / "cross")
    assert vllm(tmp_path / "cross").kind == "classifier"
    with pytest.raises(Refused, match="`classifier` model type is not supported for qwen3"):
        text_embeddings_inference(tmp_path / "cross")


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("labels, kind", [(1, "reranker"), (2, "classifier"), (3, "classifier")])
def test_cross_encoders_serve_with_their_own_scores(tmp_path, family, labels, kind):
    """Fails if TEI refuses a classifier for want of names, or its answer is not our score."""
    start = save_family(family, tmp_path / "start")
    encoder = CrossEncoder.from_pretrained(str(start), num_labels=labels)
    encoder.save_pretrained(tmp_path / "saved")
    served = text_embeddings_inference(tmp_path / "saved")
    assert served.kind == kind and vllm(tmp_path / "saved").kind == "classifier"
    pair = (SENTENCES[0], SENTENCES[1])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path / "saved")(*pair, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**inputs).logits[0]
    if labels == 1:  # /rerank: sigmoid of the logit
        assert torch.sigmoid(logits[0]).item() == pytest.approx(1 / (1 + np.exp(-encoder.similarity(*pair))), abs=1e-5)
        return
    answer = {served.labels[str(number)]: p for number, p in enumerate(torch.softmax(logits, 0).tolist())}  # /predict
    one, other = ("similar", "dissimilar") if labels == 2 else ("entailment", "contradiction")
    assert np.log(answer[one] / answer[other]) == pytest.approx(encoder.similarity(*pair), abs=1e-4)


def test_modernbert_loads_as_it_was(saved):
    """Fails if the keys for the server change what transformers reads: its layers and angles."""
    encoder, folder = saved("modernbert", "mean")
    config = json.loads((folder / "config.json").read_text())
    assert (config["global_attn_every_n_layers"], config["global_rope_theta"]) == (2, 160000.0)
    again = SentenceEncoder.from_pretrained(str(folder))
    assert again.backbone.config.layer_types == encoder.backbone.config.layer_types
    assert again.backbone.config.rope_parameters == encoder.backbone.config.rope_parameters
    np.testing.assert_array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))
