"""The saved folder against the model in memory and the start."""

import json
import logging

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from cosent.errors import InputError
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.training.proof import PROVEN_TEXTS


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


def drop(name):
    """A saver that loses a weight."""

    def save(model, original, folder, state_dict):
        original(model, folder, state_dict)
        file = folder / "model.safetensors"
        weights = load_file(file)
        lost = [key for key in weights if key.endswith(name)]
        assert lost
        save_file({key: value for key, value in weights.items() if key not in lost}, file, {"format": "pt"})

    return save


def other_length(model, original, folder, state_dict):
    original(model, folder, state_dict)
    kept = {"tokenizer_config.json": "model_max_length", "sentence_bert_config.json": "max_seq_length"}
    for name, key in kept.items():
        settings = json.loads((folder / name).read_text())
        assert settings[key] > 4
        (folder / name).write_text(json.dumps(settings | {key: 4}))


def half(model, original, folder, state_dict):
    original(model, folder, {key: value.half().float() for key, value in state_dict.items()})


@pytest.mark.parametrize(
    ("tower", "broken", "flags"),
    [
        ("bi_encoder", drop("layer.1.output.dense.weight"), ()),
        ("bi_encoder", other_length, ()),
        ("bi_encoder", half, ()),
        ("cross_encoder", drop("classifier.weight"), ("--use_peft", "true")),
    ],
)
def test_a_saver_that_loses_something_fails_the_run(train, made_up, monkeypatch, tmp_path, tower, broken, flags):
    """Fails if a run ends well with a folder that is not the model that was trained."""
    model = SentenceEncoder if tower == "bi_encoder" else CrossEncoder
    original = model.save_pretrained

    def save(self, folder, state_dict=None):
        return broken(self, original, folder, self.state_dict() if state_dict is None else state_dict)

    monkeypatch.setattr(model, "save_pretrained", save)
    with pytest.raises(InputError, match="does not match|lacks 1 weights"):
        train(made_up, "--tower", tower, "--load_best_model_at_end", "false", "--num_train_epochs", "1", *flags)
    assert not (tmp_path / "run" / "run.json").exists(), "it counts as finished"
    assert (tmp_path / "run" / "UNFINISHED").exists()


def test_a_model_that_stays_where_it_was(train, made_up, caplog):
    """Fails if a run that changed nothing ends without a word."""
    with caplog.at_level(logging.WARNING):
        train(made_up, "--learning_rate", "0")
    assert "The model has not moved" in caplog.text
