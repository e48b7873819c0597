"""`cosent export`: the bundle answers like the model, on a machine that has three packages."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from cosent import decision_rules, load_model
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.bundle import Bundle
from cosent.models.prompts import Prompts
from cosent.seal import seal
from tests.support.families import LETTERS, Template, save_family

for package in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    pytest.importorskip(package)
pytestmark = pytest.mark.slow  # compiling, and imports of two runtimes
SENTENCES = ["怎么还款", "如何还款", "好" * 90, "OPPO R11 多少钱?"]
OTHERS = ["如何还款", "今天天气很好", "好", "三星 S8"]


@pytest.fixture
def export(tmp_path, job):
    """A function that exports a model, and returns the folder of the bundle."""

    def run(model, *flags):
        job("cosent.jobs.export", "--model", model, "--output", tmp_path / "bundle", *flags)
        return tmp_path / "bundle"

    return run


def test_a_bundle_needs_three_packages(export, bi_run, made_up):
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


def test_a_cross_encoder_in_openvino(export, cross_run, pairs):
    """Fails if pairs are cut, padded or joined in another way than in training."""
    folder = export(cross_run.folder, "--format", "openvino")
    first, second, _ = zip(*pairs[:20], strict=True)
    first, second = [*first, *SENTENCES], [*second, *OTHERS]
    expected = load_model(str(cross_run.folder)).similarity(first, second)
    np.testing.assert_allclose(Bundle(folder).similarity(first, second), expected, atol=1e-5)
    assert np.ptp(expected) > 1e-3


def test_a_student_and_prompts(export, tiny_student, tmp_path):
    """Fails if a bundle leaves a prompt or the layers after the pooling out."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_student))
    encoder.prompts = Prompts({"query": "查询："}, "query")
    encoder.save_pretrained(tmp_path / "prompted")
    vectors = Bundle(export(tmp_path / "prompted")).encode(SENTENCES)
    np.testing.assert_allclose(vectors, encoder.encode(SENTENCES, normalize_embeddings=True), atol=1e-5)
    assert np.abs(vectors - encoder.encode(SENTENCES, normalize_embeddings=True, prompt="")).max() > 1e-3


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_equal_texts_and_texts_without_tokens(export, tmp_path, runtime, caplog):
    """Fails if a text without tokens becomes NaN, equal texts no longer tie at 1, or a user is warned of sentences that
    are not theirs."""
    save_family("bert", tmp_path / "plain")
    Template({"pad_token": "[PAD]", "unk_token": "[UNK]"}, "$A", "$A $B")().save_pretrained(tmp_path / "plain")
    encoder = SentenceEncoder.from_pretrained(str(tmp_path / "plain"))
    assert not encoder.tokenizer("")["input_ids"], "some tokenizers put nothing around a text"
    bundle = Bundle(export(tmp_path / "plain", "--format", runtime))
    assert "longer than" not in caplog.text
    texts = ["".join(LETTERS[:length]) for length in range(40)]  # the first is empty
    np.testing.assert_allclose(bundle.encode(texts), encoder.encode(texts, normalize_embeddings=True), atol=1e-5)
    assert bundle.similarity(texts, texts).tolist() == [0.0] + [1.0] * 39
    assert bundle.encode(["", ""]).tolist() == [[0.0] * encoder.embedding_dimension] * 2


def test_stdout_has_only_results(job, bi_run, made_up, tmp_path, monkeypatch):
    """Fails if the bars of NNCF come before the JSON that a script reads."""
    monkeypatch.setattr("cosent.jobs.export.LEAST_AGREEMENT", 0.9)  # of 32 pairs
    flags = ("--format", "openvino", "--int8", "--corpus", made_up, "--output", tmp_path / "bundle")
    answer, after = job("cosent.jobs.export", "--model", bi_run.folder, *flags)[0].splitlines()
    assert json.loads(answer)["int8"] and after.startswith("next: ")


def test_int8_is_refused_where_it_costs_too_much(export, bi_run, made_up, monkeypatch, tmp_path):
    """Fails if int8 is written without a proof, or a failed proof leaves a folder."""
    with pytest.raises(InputError, match="--corpus"):
        export(bi_run.folder, "--int8")
    monkeypatch.setattr("cosent.jobs.export.LEAST_AGREEMENT", 1.1)
    with pytest.raises(InputError, match="same_verdicts"):
        export(bi_run.folder, "--int8", "--corpus", made_up)
    assert not (tmp_path / "bundle").exists()
    monkeypatch.undo()
    folder = export(bi_run.folder, "--int8", "--corpus", made_up)
    scores = load_model(str(bi_run.folder)).similarity(SENTENCES, OTHERS)
    assert 0 < np.abs(Bundle(folder).similarity(SENTENCES, OTHERS) - scores).max() < 0.1
    with pytest.raises(InputError, match="exists"):
        export(bi_run.folder)


def test_bfloat16(export, bi_run, made_up):
    """Fails if --bf16 is taken by a runtime that ignores it, is not stored, or changes more than rounding does."""
    with pytest.raises(InputError, match="openvino"):
        export(bi_run.folder, "--bf16", "--corpus", made_up)
    with pytest.raises(InputError, match="--corpus"):
        export(bi_run.folder, "--bf16", "--format", "openvino")
    bundle = Bundle(export(bi_run.folder, "--bf16", "--format", "openvino", "--corpus", made_up))
    assert bundle.settings["precision"] == "bf16"
    scores = load_model(str(bi_run.folder)).similarity(SENTENCES, OTHERS)
    np.testing.assert_allclose(bundle.similarity(SENTENCES, OTHERS), scores, atol=0.02)


def test_a_damaged_bundle(export, tiny_model):
    """Fails if a bundle of another version, or with a file that is missing or damaged, is read or ends in a trace."""
    folder = export(tiny_model)
    for name in ("bundle.json", "tokenizer.json", "model.onnx", "whole.json"):
        whole = (folder / name).read_bytes()
        for damaged in (whole[: len(whole) // 2], whole.replace(b"1", b"2", 1)):
            (folder / name).write_bytes(damaged)
            with pytest.raises(ValueError, match=re.escape(str(folder))):
                Bundle(folder)
        (folder / name).write_bytes(whole)
    settings = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps(settings | {"form": 0}))
    seal(folder)
    with pytest.raises(ValueError, match="form 0"):
        Bundle(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(ValueError, match="model.onnx is missing"):
        Bundle(folder)
    with pytest.raises(ValueError, match="no whole.json"):
        Bundle(folder.parent)
