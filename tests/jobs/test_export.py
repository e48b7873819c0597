"""`cosent export`: the folder answers like the model, on a machine that has three packages."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers.util import import_from_string
from transformers import AutoTokenizer

from cosent import decision_rules, load_model
from cosent.errors import InputError
from cosent.jobs.verify import VerifyArguments, main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.onnx_reader import OnnxModel
from cosent.models.prompts import Prompts
from tests.support.families import LETTERS, Template, save_family

onnx, _, onnxruntime = map(pytest.importorskip, ("onnx", "onnxscript", "onnxruntime"))
pytestmark = pytest.mark.slow  # tracing, and imports of a runtime
SENTENCES = ["怎么还款", "如何还款", "好" * 90, "OPPO R11 多少钱?"]
OTHERS = ["如何还款", "今天天气很好", "好", "三星 S8"]


@pytest.fixture
def export(tmp_path, job):
    """A function that exports a model, and returns its folder."""

    def run(model, *flags, output="exported"):
        job("cosent.jobs.export", "--model", model, "--output", tmp_path / output, *flags)
        return tmp_path / output

    return run


def test_an_export_needs_three_packages(export, bi_run, made_up):
    """Fails if run.py needs more than numpy, tokenizers and the runtime, or score, probability or verdict differ."""
    folder = export(bi_run.folder, "--corpus", made_up)
    blocked = "import sys; sys.modules.update({name: None for name in ('torch', 'transformers', 'cosent', 'scipy')}); "
    code = f"{blocked} import runpy; runpy.run_path({str(folder / 'run.py')!r}, run_name='__main__')"
    command = [sys.executable, "-I", "-c", code, *SENTENCES[:2]]
    answer = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    model, rule = load_model(str(bi_run.folder)), decision_rules(bi_run.folder)["made_up"]
    score = model.similarity(*SENTENCES[:2])
    assert answer["score"] == pytest.approx(score, abs=1e-5)
    assert answer["probability"] == pytest.approx(rule.probabilities([score])[0], abs=1e-4)
    assert answer["verdict"] == ("similar" if rule.similar([score])[0] else "not similar")


@pytest.mark.matrix
def test_shorter_vectors(export, bi_run, tmp_path):
    """Fails if --truncate_dim keeps other numbers than `truncate`, or the threshold of the whole vectors."""
    exported = OnnxModel(export(bi_run.folder, "--truncate_dim", "8"))
    encoder = SentenceEncoder.from_pretrained(str(bi_run.folder))
    encoder.truncate(8)
    np.testing.assert_allclose(
        exported.encode(SENTENCES), encoder.encode(SENTENCES, normalize_embeddings=True), atol=1e-5
    )
    assert exported.rule is None and exported.embedding_dimension == 8


@pytest.mark.matrix
def test_equal_texts_and_texts_without_tokens(export, tmp_path, caplog):
    """Fails if a text without tokens becomes NaN, equal texts no longer tie at 1, or a user is warned of sentences that
    are not theirs."""
    save_family("bert", tmp_path / "plain")
    Template({"pad_token": "[PAD]", "unk_token": "[UNK]"}, "$A", "$A $B")().save_pretrained(tmp_path / "plain")
    encoder = SentenceEncoder.from_pretrained(str(tmp_path / "plain"))
    assert not encoder.tokenizer("")["input_ids"], "some tokenizers put nothing around a text"
    exported = OnnxModel(export(tmp_path / "plain"))
    assert "longer than" not in caplog.text
    texts = ["".join(LETTERS[:length]) for length in range(40)]  # the first is empty
    np.testing.assert_allclose(exported.encode(texts), encoder.encode(texts, normalize_embeddings=True), atol=1e-5)
    assert exported.similarity(texts, texts).tolist() == [0.0] + [1.0] * 39
    assert exported.encode(["", ""]).tolist() == [[0.0] * encoder.embedding_dimension] * 2


def outputs_of(folder, file, *texts):
    """Outputs by name of a graph, for texts or pairs as the folder's own tokenizer has them."""
    tokens = AutoTokenizer.from_pretrained(folder)(*texts, padding=True, truncation=True, return_tensors="np")
    session = onnxruntime.InferenceSession(folder / file)
    names = [output.name for output in session.get_outputs()]
    inputs = {one.name: tokens[one.name] for one in session.get_inputs()}
    return dict(zip(names, session.run(None, inputs), strict=True)), tokens["attention_mask"]


def test_an_export_is_a_folder_of_the_hub(export, tiny_student, tmp_path):
    """Fails if a program that follows config.json, the tokenizer and modules.json makes other vectors of the graph, a
    prompt or a layer after the pooling is left out, or the folder has its weights twice."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_student))
    encoder.prompts = Prompts({"query": "查询："}, "query")
    encoder.save_pretrained(tmp_path / "prompted")
    folder = export(tmp_path / "prompted")
    prompted = encoder.encode(SENTENCES, normalize_embeddings=True)
    np.testing.assert_allclose(OnnxModel(folder).encode(SENTENCES), prompted, atol=1e-5)
    expected = encoder.encode(SENTENCES, prompt="")
    assert np.abs(prompted - encoder.encode(SENTENCES, normalize_embeddings=True, prompt="")).max() > 1e-3
    outputs, mask = outputs_of(folder, "onnx/model.onnx", SENTENCES)
    assert list(outputs) == ["sentence_embedding", "last_hidden_state"]
    np.testing.assert_allclose(outputs["sentence_embedding"], expected, atol=1e-5)
    modules = json.loads((folder / "modules.json").read_text())[1:]
    features = {"token_embeddings": torch.from_numpy(outputs["last_hidden_state"])}
    features["attention_mask"] = torch.from_numpy(mask)
    for module in modules:
        features = import_from_string(module["type"]).load(str(folder / module["path"]))(features)
    np.testing.assert_allclose(features["sentence_embedding"].detach(), expected, atol=1e-5)
    assert len(modules) > 1 and not list(folder.glob("*.safetensors")), "the student has a layer after its pooling"
    with pytest.raises(InputError, match="export in ONNX"):
        load_model(str(folder))
    assert not main(VerifyArguments(folder=str(folder)))


def test_logits_of_two_classes(export, tiny_model, tmp_path):
    """Fails if a reranker whose score is the difference of two logits is ranked by one of them."""
    CrossEncoder.from_pretrained(tiny_model, num_labels=2).save_pretrained(tmp_path / "two")
    folder = export(tmp_path / "two")
    outputs, _ = outputs_of(folder, "onnx/model.onnx", SENTENCES, OTHERS)
    scores = load_model(str(tmp_path / "two")).similarity(SENTENCES, OTHERS)
    np.testing.assert_allclose(outputs["scores"][:, 0], scores, atol=1e-5)
    np.testing.assert_allclose(outputs["logits"] @ [-1, 1], scores, atol=1e-5)
    np.testing.assert_allclose(OnnxModel(folder).similarity(SENTENCES, OTHERS), scores, atol=1e-5)


def test_int8_is_refused_where_it_costs_too_much(export, bi_run, made_up, monkeypatch, tmp_path):
    """Fails if int8 is written without a proof, or a failed proof leaves a folder."""
    with pytest.raises(InputError, match="--corpus"):
        export(bi_run.folder, "--int8")
    folder = export(bi_run.folder, "--int8", "--corpus", made_up)
    scores = load_model(str(bi_run.folder)).similarity(SENTENCES, OTHERS)
    assert 0 < np.abs(OnnxModel(folder).similarity(SENTENCES, OTHERS) - scores).max() < 0.1
    with pytest.raises(InputError, match="exists"):
        export(bi_run.folder)

    def copied(model, output, *_):
        shutil.copytree(folder, output, dirs_exist_ok=True)
        return "onnx/model_quantized.onnx"

    monkeypatch.setattr("cosent.models.onnx.write_onnx", copied)
    monkeypatch.setattr("cosent.jobs.export.LEAST_AGREEMENT", 1.1)
    with pytest.raises(InputError, match="same_verdicts"):
        export(bi_run.folder, "--int8", "--corpus", made_up, output="refused")
    assert not (tmp_path / "refused").exists()
