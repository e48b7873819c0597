"""`cosent verify`: what is wrong with a folder, in words and as an exit status."""

import json
import shutil

import pytest

from cosent.jobs.verify import VerifyArguments, main
from cosent.models import load_model


@pytest.fixture
def verify(capsys):
    """Returns a function that runs the job, and gives back its exit status and what it prints."""

    def run(folder) -> tuple[int, str]:
        capsys.readouterr()
        status = main(VerifyArguments(folder=str(folder)))
        return status, capsys.readouterr().out

    return run


def test_every_kind_of_folder(verify, bi_run, tiny_model, made_up, tmp_path):
    """Fails if a whole folder is called damaged, or nothing is said of a place where there is nothing to check."""
    checkpoint = next(bi_run.folder.glob("checkpoint-*"))
    for folder in (bi_run.folder, "similar", checkpoint, made_up):
        status, said = verify(folder)
        assert status == 0 and " is whole: " in said, said
    status, said = verify(tiny_model)
    assert status == 0 and "it has no whole.json" in said
    status, said = verify(tmp_path)
    assert status == 1 and "holds no model" in said


def test_a_change_is_told(verify, bi_run, tmp_path):
    """Fails if an edited setting counts as damage or is kept quiet, or damaged weights or half a checkpoint pass."""
    folder = shutil.copytree(bi_run.folder, tmp_path / "run")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "问："}}))
    (folder / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text() + "\n")
    (folder / "scores.npz").unlink()
    status, said = verify(folder)
    assert status == 0 and "not listed in whole.json: config_sentence_transformers.json" in said
    assert "tokenizer_config.json has" in said and "scores.npz is missing" in said
    assert load_model(str(folder)).prompts.texts == {"query": "问："}
    checkpoint = next(folder.glob("checkpoint-*"))
    for place, name in ((folder, "model.safetensors"), (checkpoint, "optimizer.pt")):
        with open(place / name, "ab") as file:
            file.write(b"1")
        status, said = verify(place)
        assert status == 1 and f"{name} has" in said
    (checkpoint / "whole.json").write_text("")
    assert verify(checkpoint)[0] == 1
    (folder / "UNFINISHED").touch()
    assert verify(folder)[0] == 1


def test_a_corpus(verify, made_up, tmp_path):
    """Fails if a corpus with another label passes."""
    folder = shutil.copytree(made_up, tmp_path / "corpus")
    shutil.copy(folder / "test.parquet", folder / "validation.parquet")
    assert verify(folder)[0] == 1
