"""The saved folder against the model in memory and the start."""

import json
import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cosent.errors import InputError
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.run import read_record
from cosent.training.proof import COMPARED, distance

TOWERS = ("bi_encoder", "cross_encoder")


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:40]})


@pytest.mark.parametrize("tower", TOWERS)
def test_the_folder_is_the_model_in_memory(train, corpus, tiny_model, pairs, tower, caplog):
    """Fails if the proof is of other bits than those that were trained, or the way from the start is miscounted."""
    with caplog.at_level(logging.INFO, logger="cosent"):
        folder = (
            train(corpus, "--tower", tower, "--pooling", "mean")
            if tower == "bi_encoder"
            else train(corpus, "--tower", tower)
        )
    proof = read_record(folder).proof
    assert proof.reloaded == 0 and proof.compared == COMPARED
    assert f"reloaded equal to 0e+00; moved {proof.moved:.2g} from the start" in caplog.text
    firsts, seconds = [a for a, _, _ in pairs[:COMPARED]], [b for _, b, _ in pairs[:COMPARED]]
    if tower == "bi_encoder":
        start, end = (load_model(str(place)).encode(firsts) for place in (tiny_model, folder))
        cosines = (start * end).sum(1) / np.linalg.norm(start, axis=1) / np.linalg.norm(end, axis=1)
        assert proof.moved == pytest.approx(np.mean(1 - cosines), rel=1e-3) and proof.moved > 1e-3
    else:
        start = CrossEncoder.from_pretrained(str(tiny_model), 1).similarity(firsts, seconds)
        end = load_model(str(folder)).similarity(firsts, seconds)
        assert proof.moved == pytest.approx(np.abs(end - start).mean(), rel=1e-3) and proof.moved > 1e-3


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


def not_merged(model, original, folder, state_dict):
    base = {key: value for key, value in model.state_dict().items() if ".lora_" not in key}
    original(model, folder, {key.replace(".base_layer.", "."): value for key, value in base.items()})


def half(model, original, folder, state_dict):
    original(model, folder, {key: value.half().float() for key, value in state_dict.items()})


@pytest.mark.parametrize(
    ("tower", "broken", "flags"),
    [
        ("bi_encoder", drop("layer.1.output.dense.weight"), ()),
        ("bi_encoder", other_length, ()),
        ("bi_encoder", half, ()),
        ("bi_encoder", not_merged, ("--use_peft", "true", "--learning_rate", "3e-2")),
        ("cross_encoder", drop("classifier.weight"), ()),
        ("cross_encoder", drop("classifier.weight"), ("--use_peft", "true")),
    ],
)
def test_a_saver_that_loses_something_fails_the_run(train, corpus, monkeypatch, tmp_path, tower, broken, flags):
    """Fails if a run ends well with a folder that is not the model that was trained."""
    model = SentenceEncoder if tower == "bi_encoder" else CrossEncoder
    original = model.save_pretrained
    monkeypatch.setattr(model, "save_pretrained", lambda self, folder, state_dict=None: broken(
        self, original, folder, self.state_dict() if state_dict is None else state_dict))  # fmt: skip
    with pytest.raises(InputError, match="run, loaded from disk, .*Whoever loads it would get another model"):
        train(corpus, "--tower", tower, "--load_best_model_at_end", "false", *flags)
    assert not (tmp_path / "run" / "run.json").exists(), "it counts as finished"
    assert (tmp_path / "run" / "UNFINISHED").exists()


@pytest.mark.parametrize("tower", TOWERS)
def test_a_merged_adapter_is_equal_up_to_rounding(train, corpus, tower):
    """Fails if a good LoRA run is taken for a broken one, or bfloat16 steps for other weights."""
    flags = ("--tower", tower, "--learning_rate", "3e-2")
    proof = read_record(train(corpus, "--use_peft", "true", *flags, output="lora")).proof
    assert proof.reloaded < 1e-5 and proof.moved > 1e-3
    proof = read_record(train(corpus, "--bf16", "true", "--tower", tower, output="bf16")).proof
    assert proof.reloaded == 0


def test_a_resumed_run_knows_the_start(train, corpus):
    """Fails if a resumed run measures its way from the checkpoint."""
    whole = train(corpus, "--save_total_limit", "2", output="whole")
    resumed = train(corpus, "--resume_from_checkpoint", str(whole / "checkpoint-4"), output="resumed")
    assert read_record(resumed).proof == read_record(whole).proof


def test_a_model_that_stays_where_it_was(train, corpus, caplog):
    """Fails if a run that changed nothing ends without a word."""
    with caplog.at_level(logging.WARNING):
        train(corpus, "--learning_rate", "0")
    assert "The model has not moved from the one it started from" in caplog.text


def test_distances_by_hand():
    """Fails if the way of vectors or scores is another number than the documented one."""
    start, now = np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 3.0], [1.0, 0.0]])
    assert distance(start.astype(np.float32), now.astype(np.float32)) == pytest.approx(0.5)  # (1 + 0) / 2
    assert distance(np.array([1.0, 2.0]), np.array([0.0, 4.0])) == pytest.approx(1.5)
    assert torch.get_default_dtype() == torch.float32
