"""`cosent verify`: what is wrong with a folder, in words and as an exit status."""

import json
import shutil

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.jobs.verify import VerifyArguments, main
from cosent.models.auto import load_model


@pytest.fixture
def verify(capsys):
    """Returns a function that runs the job, and gives back its exit status and what it prints."""

    def run(folder, **flags) -> tuple[int, str]:
        capsys.readouterr()
        status = main(VerifyArguments(folder=str(folder), **flags))
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


def test_a_change_is_told_and_can_be_accepted(verify, bi_run, tmp_path):
    """Fails if several faults are told one at a time, or a user cannot keep a prompt written into a trained model."""
    folder = shutil.copytree(bi_run.folder, tmp_path / "run")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "问："}}))
    status, said = verify(folder)
    assert status == 0 and "not listed in whole.json: config_sentence_transformers.json" in said
    (folder / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text() + "\n")
    (folder / "scores.npz").unlink()
    status, said = verify(folder)
    assert status == 1 and "tokenizer_config.json has" in said and "scores.npz is missing" in said
    with pytest.raises(InputError, match="cosent verify .* --accept"):
        load_model(str(folder))
    status, said = verify(folder, accept=True)
    assert status == 0 and "not listed" not in said
    assert load_model(str(folder)).prompts.texts == {"query": "问："}


def test_what_was_accepted_must_be_a_model(verify, tiny_bi, tmp_path):
    """Fails if --accept makes half a model, or an unfinished run, a whole one."""
    folder = shutil.copytree(tiny_bi, tmp_path / "run")
    kept = (folder / "1_Pooling/config.json").rename(tmp_path / "pooling.json")
    (folder / "whole.json").write_text("{")
    status, said = verify(folder, accept=True)
    assert status == 1 and "1_Pooling/config.json" in said and (folder / "whole.json").read_text() == "{"
    kept.rename(folder / "1_Pooling/config.json")
    assert verify(folder)[0] == 1 and verify(folder, accept=True)[0] == verify(folder)[0] == 0
    shutil.copytree(tiny_bi, tmp_path / "begun")
    (tmp_path / "begun/UNFINISHED").touch()
    status, said = verify(tmp_path / "begun", accept=True)
    assert status == 1 and "unfinished run" in said and not (tmp_path / "begun/whole.json").exists()


def test_a_torn_list_of_files(verify, bi_run, tmp_path):
    """Fails if a bundle keeps the files that no list names, or half a checkpoint can be made a whole one."""
    (tmp_path / "bundle").mkdir()
    for name in ("whole.json", "bundle.json", "config.json", "model.onnx"):
        (tmp_path / "bundle" / name).write_text("{")
    assert verify(tmp_path / "bundle", accept=True) == (0, f"{tmp_path / 'bundle'} is whole: 3 files\n")
    checkpoint = shutil.copytree(next(bi_run.folder.glob("checkpoint-*")), tmp_path / "checkpoint-1")
    (checkpoint / "whole.json").write_text("")
    status, said = verify(checkpoint, accept=True)
    assert status == 1 and "checkpoint" in said and (checkpoint / "whole.json").read_text() == ""


def test_data(verify, made_up, tiny_bi, job, tmp_path):
    """Fails if a corpus with another label, or vectors with a flipped bit, pass, or are accepted."""
    folder = shutil.copytree(made_up, tmp_path / "corpus")
    shutil.copy(folder / "test.parquet", folder / "validation.parquet")
    assert verify(folder)[0] == verify(folder, accept=True)[0] == 1
    (tmp_path / "faq.txt").write_text("怎么还款\n如何还款\n今天天气很好\n", encoding="utf-8")
    vectors = tmp_path / "faq.npy"
    job("cosent.jobs.encode", "--model", tiny_bi, "--text", tmp_path / "faq.txt", "--output", vectors, "--normalize")
    assert verify(vectors) == (0, f"{vectors} is whole: 3 vectors of {tmp_path / 'faq.txt'}\n")
    changed = np.load(vectors)
    changed[1, 1] += 1e-6
    np.save(vectors, changed)
    status, said = verify(vectors)
    assert status == 1 and "faq.npy" in said
