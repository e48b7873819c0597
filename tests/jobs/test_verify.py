"""`cosent verify`: what is wrong with a folder, in words and as an exit status."""

import json
import shutil

import numpy as np
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


def test_data(verify, made_up, tiny_bi, job, tmp_path):
    """Fails if a corpus with another label, or vectors with a flipped bit, pass."""
    folder = shutil.copytree(made_up, tmp_path / "corpus")
    shutil.copy(folder / "test.parquet", folder / "validation.parquet")
    assert verify(folder)[0] == 1
    (tmp_path / "faq.txt").write_text("怎么还款\n如何还款\n今天天气很好\n", encoding="utf-8")
    vectors = tmp_path / "faq.npy"
    job("cosent.jobs.encode", "--model", tiny_bi, "--text", tmp_path / "faq.txt", "--output", vectors, "--normalize")
    assert verify(vectors) == (0, f"{vectors} is whole: 3 vectors of {tmp_path / 'faq.txt'}\n")
    changed = np.load(vectors)
    changed[1, 1] += 1e-6
    np.save(vectors, changed)
    status, said = verify(vectors)
    assert status == 1 and "faq.npy" in said
