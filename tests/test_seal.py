"""Folders that are read only if they are whole."""

import os
import re
import shutil

import pytest

from cosent.encoders import SHIPPED, local
from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import decision_rules
from cosent.seal import SEAL, faults, model_files, sealed_files


def flip(file, place: int = -9) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_are_those_that_were_sealed(name):
    """Fails if a shipped model was changed and not sealed again: nobody could load it."""
    listed = sealed_files(local(name))
    assert not list(faults(local(name)))
    assert set(listed) == {path.relative_to(local(name)).as_posix() for path in model_files(local(name))}
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "run.json"} <= set(listed)


def test_a_trained_folder_that_is_not_what_it_was(bi_run, tmp_path):
    """Fails if a model with a flipped bit, a missing module, half a tokenizer or half a list of its files is read."""
    damages = {
        "model.safetensors": flip,
        "1_Pooling/config.json": lambda file: file.unlink(),
        "tokenizer.json": lambda file: os.truncate(file, 9),
        SEAL: lambda file: os.truncate(file, 40),
    }
    for number, (name, damage) in enumerate(damages.items()):
        folder = shutil.copytree(bi_run.folder, tmp_path / str(number))
        load_model(str(folder))
        damage(folder / name)
        with pytest.raises(InputError, match=re.escape(str(folder))):
            load_model(str(folder))


def test_what_may_change_in_a_folder(lora_run, tmp_path):
    """Fails if a note, an edited card, setting or tokenizer, or a download without the adapter stops a model from being
    read."""
    folder = shutil.copytree(lora_run.folder, tmp_path / "run")
    assert "adapter/adapter_model.safetensors" in sealed_files(folder)
    shutil.rmtree(folder / "adapter")
    (folder / "onnx").mkdir()
    for name in ("README.md", "onnx/model.onnx", "notes.txt", ".gitattributes"):
        (folder / name).write_text("new")
    for name in ("config.json", "tokenizer_config.json", "run.json"):
        (folder / name).write_text((folder / name).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    load_model(str(folder))


def test_a_model_that_is_saved_over_a_sealed_one(bi_run, tmp_path):
    """Fails if Python code that changes a trained model and saves it in place gets a folder that cannot be read.

    Or if the new model answers with the thresholds of the one before.
    """
    folder = shutil.copytree(bi_run.folder, tmp_path / "run")
    assert decision_rules(folder)
    model = load_model(str(folder))
    model.truncate(8)
    model.save_pretrained(folder)
    assert SentenceEncoder.from_pretrained(str(folder)).embedding_dimension == 8
    assert not decision_rules(folder)
