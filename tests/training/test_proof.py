"""The saved folder against the model in memory and the start."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.training.proof import PROVEN_TEXTS, FolderProof
from tests.conftest import SENTENCES


def test_the_folder_is_the_model_in_memory(bi_run, cross_run, lora_run, tiny_model, pairs):
    """Fails if the proof is of other bits than those that were trained, or the way from the start is miscounted."""
    assert bi_run.record.proof.reloaded == cross_run.record.proof.reloaded == 0
    assert bi_run.record.proof.compared == cross_run.record.proof.compared == PROVEN_TEXTS
    assert lora_run.record.proof.reloaded < 1e-5 and lora_run.record.proof.moved > 1e-3
    firsts, seconds = [a for a, _, _ in pairs[:PROVEN_TEXTS]], [b for _, b, _ in pairs[:PROVEN_TEXTS]]
    start, end = (load_model(str(place)).encode(firsts) for place in (tiny_model, bi_run.folder))
    cosines = (start * end).sum(1) / np.linalg.norm(start, axis=1) / np.linalg.norm(end, axis=1)
    moved = bi_run.record.proof.moved
    assert moved == pytest.approx(np.mean(1 - cosines), rel=1e-3) and moved > 1e-3
    start = CrossEncoder.from_pretrained(str(tiny_model), 1, segment_ids="zero").similarity(firsts, seconds)
    end = load_model(str(cross_run.folder)).similarity(firsts, seconds)
    moved = cross_run.record.proof.moved
    assert moved == pytest.approx(np.abs(end - start).mean(), rel=1e-3) and moved > 1e-3


def without_a_weight(encoder, folder):
    encoder.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    (lost,) = [name for name in weights if name.endswith("layer.1.output.dense.weight")]
    save_file({name: weight for name, weight in weights.items() if name != lost}, folder / "model.safetensors")


def of_another_length(encoder, folder):
    encoder.save_pretrained(folder)
    for name, key in {
        "tokenizer_config.json": "model_max_length",
        "sentence_bert_config.json": "max_seq_length",
    }.items():
        settings = json.loads((folder / name).read_text())
        assert settings[key] > 4
        (folder / name).write_text(json.dumps(settings | {key: 4}))


def rounded(encoder, folder):
    encoder.save_pretrained(folder, {name: weight.half().float() for name, weight in encoder.state_dict().items()})


@pytest.mark.parametrize("save", [without_a_weight, of_another_length, rounded])
def test_a_folder_that_is_not_the_model_is_refused(tiny_model, tmp_path, caplog, save):
    """Fails if a folder that lost something counts as the trained model, or an unchanged model is not reported."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=32)
    proof = FolderProof(encoder, list(zip(SENTENCES, SENTENCES[::-1], strict=True)))
    proof.begin()
    encoder.save_pretrained(tmp_path / "whole")
    assert proof.check(tmp_path / "whole").reloaded == 0 and "The model has not moved" in caplog.text
    (tmp_path / "broken").mkdir()
    save(encoder, tmp_path / "broken")
    with pytest.raises(InputError, match="does not match|lacks 1 weights"):
        proof.check(tmp_path / "broken")


def test_a_run_with_such_a_folder_is_not_finished(train, made_up, monkeypatch, tmp_path):
    """Fails if a run ends well with a folder that is not the model that was trained."""
    original = CrossEncoder.save_pretrained

    def save(model, folder, state_dict=None):
        original(model, folder, {name: 2 * weight for name, weight in (state_dict or model.state_dict()).items()})

    monkeypatch.setattr(CrossEncoder, "save_pretrained", save)
    flags = ("--use_peft", "true", "--load_best_model_at_end", "false", "--max_steps", "1")
    with pytest.raises(InputError, match="does not match"):
        train(made_up, "--tower", "cross_encoder", *flags)
    assert not (tmp_path / "run" / "run.json").exists(), "it counts as finished"
    assert (tmp_path / "run" / "UNFINISHED").exists()
