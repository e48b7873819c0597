"""Runs that are killed, resumed, finished, or out of disk."""

import json
import logging
import os
import shutil
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cosent.atomic import SEAL, is_whole, seal
from cosent.errors import InputError
from cosent.record import read_record
from cosent.training import checkpoints
from cosent.training.arguments import LossArguments, PairTrainingArguments
from cosent.training.resumable import LogLines
from tests.support.locks import locked_elsewhere


def whole(folder, step, size=3):
    place = folder / f"checkpoint-{step}"
    (place / "part").mkdir(parents=True)
    (place / "model.safetensors").write_bytes(b"x" * size)
    (place / "part" / "optimizer.pt").write_bytes(b"y" * size)
    seal(place)
    return place


def test_a_checkpoint_is_on_the_disk_before_it_counts(tmp_path, monkeypatch):
    """Fails if a power failure can leave a sealed checkpoint whose weights are zeros."""
    order = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("flushed"))
    monkeypatch.setattr("cosent.atomic.write_atomically", lambda *_: order.append("sealed"))
    whole(tmp_path, 4)
    assert order == ["flushed", "flushed", "sealed"]


def test_room_is_made_when_all_else_is_ready(tmp_path):
    """Fails if looking for a checkpoint already deletes an earlier run, one begun anew keeps any part of it, or removes
    what it starts from or a file that is not of a run."""
    old = whole(tmp_path, 4)
    for name in ("run.json", "scores.npz", "config.json", "model.safetensors", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "adapter").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert checkpoints.find_checkpoint(str(tmp_path), None, overwrite=True) is None
    assert sorted(tmp_path.rglob("*")) == before
    (old / checkpoints.SETTINGS_NAME).write_text("{}")
    with pytest.raises(InputError, match="--teacher .* is --output_dir too"):
        checkpoints.claim_output_folder(str(tmp_path), None, {"teacher": f"{tmp_path}/."})
    assert sorted(tmp_path.rglob("*")) == sorted([*before, old / checkpoints.SETTINGS_NAME])
    (whole(tmp_path, 2) / "model.safetensors").unlink()  # killed while it was removed
    checkpoints.claim_output_folder(str(tmp_path), str(old), {})
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-4", "notes.txt", "UNFINISHED"}
    checkpoints.claim_output_folder(str(tmp_path), None, {})
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "UNFINISHED"}


OLD = {"config.json": "old", "modules.json": '[{"path": "2_Dense"}]', "run.json": "old", "whole.json": "old"}
OLD |= {"model.safetensors": "old", "vocab.txt": "old", "1_Pooling/config.json": "old", "2_Dense/config.json": "old"}
NEW = {name: "new" for name in ("config.json", "modules.json", "run.json", "whole.json", "model.safetensors")}
NEW |= {"tokenizer.json": "new", "1_Pooling/config.json": "new"}


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_no_model_is_a_mixture_at_any_moment(tmp_path, monkeypatch):
    """Fails if a kill while the final model is saved leaves what any library reads as a model of two trainings."""

    class Killed(BaseException):
        pass

    def killing(function):
        def run(*args, **kwargs):
            if calls and calls.pop() == "killed":
                raise Killed
            return function(*args, **kwargs)

        return run

    steps = 0
    for steps in range(100):
        folder, calls = tmp_path / str(steps), []
        write(folder, OLD | {"notes.txt": "mine"})
        try:
            with (
                monkeypatch.context() as patch,
                checkpoints.final_folder(SimpleNamespace(should_save=True), folder) as new,
            ):
                write(new, NEW)
                assert (folder / "model.safetensors").read_text() == "old", "the old one answers until the end"
                for place, name in ((os, "replace"), (Path, "unlink"), (shutil, "rmtree")):
                    patch.setattr(place, name, killing(getattr(place, name)))
                calls = ["killed"] + ["survived"] * steps
        except Killed:
            pass
        files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
        if files.get("config.json") == "new":
            assert files == NEW | {"notes.txt": "mine"}, steps
        elif "config.json" in files:
            assert files == OLD | {"notes.txt": "mine"}, steps
        if calls:
            break
    assert steps > len(NEW) and files == NEW | {"notes.txt": "mine"}


def test_a_run_resumes_with_its_own_settings_only(tmp_path):
    """Fails if another loss or number of processes joins a stopped run, a checkpoint that cannot tell is resumed, or a
    setting of our own, of Trainer's mathematics or of the launch is not part of the comparison."""
    started = {"loss": "cosent", "limit_train": None, "names": ["a"], "processes": 2}
    checkpoint = whole(tmp_path, 4)
    (checkpoint / checkpoints.SETTINGS_NAME).write_text(json.dumps(started))
    checkpoints.claim_output_folder(
        str(tmp_path), str(checkpoint), started | {"names": ("a",), "added_by_a_later_version": 1}
    )
    with pytest.raises(InputError, match="loss cosent, not angle; limit_train None, not 7; processes 2, not 1"):
        changed = {"loss": "angle", "limit_train": 7, "processes": 1}
        checkpoints.claim_output_folder(str(tmp_path), str(checkpoint), started | changed)
    with pytest.raises(InputError, match="checkpoint-8 has no settings.json"):
        checkpoints.claim_output_folder(str(tmp_path), str(whole(tmp_path, 8)), started)
    args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no")
    settings = checkpoints.run_settings(args, LossArguments(), data={"data/x.txt": "0123456789abcdef"})
    compared = {"loss", "scale", "cached_batch_size", "learning_rate"}
    compared |= {"seed", "bf16", "optim", "processes", "mixed_precision", "sharded_by", "data of x.txt"}
    free = {"logging_steps", "output_dir", "save_steps", "eval_strategy", "gradient_checkpointing"}
    assert compared <= set(settings) and not free & set(settings)
    names = {field.name for field in fields(PairTrainingArguments)}
    assert not checkpoints.TRAINER_SETTINGS - names, "transformers has these no more"


def test_a_checkpoint_of_another_folder(train, make_corpus, pairs, tmp_path):
    """Fails if a run resumed into another folder mixes two schedules or other data of the same name, ends with other
    weights, or is refused for a flag that changes nothing; or if a full disk takes the last whole checkpoint along."""
    first = train("--save_total_limit", "2")
    resume = ("--resume_from_checkpoint", str(first / "checkpoint-4"))
    for flag, value in {"warmup_steps": "0.5", "max_grad_norm": "0.01", "num_train_epochs": "3"}.items():
        with pytest.raises(InputError, match=f"started with other settings: {flag}"):
            train(*resume, f"--{flag}", value, output="other")
    assert not list((tmp_path / "other").glob("*"))
    other = train(*resume, "--logging_steps", "1", output="other")
    assert (other / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="already holds a model"):
        train(*resume, output="other")
    place = tmp_path / "second"
    shutil.copytree(first / "checkpoint-4", place / "checkpoint-4")
    (place / "checkpoint-8").mkdir()
    (place / "checkpoint-8" / "optimizer.pt").symlink_to("/dev/full")  # every write: no space left on device
    with pytest.raises(InputError, match="checkpoint-8 could not be written .*--resume_from_checkpoint auto"):
        train("--resume_from_checkpoint", str(place / "checkpoint-4"), "--save_total_limit", "2", output="second")
    assert is_whole(place / "checkpoint-4") and not is_whole(place / "checkpoint-8")
    make_corpus({"train": [*pairs[1:], pairs[0]], "validation": pairs[:32]})
    with pytest.raises(InputError, match=r"started with other settings: data of made_up \w{12}, not \w{12}"):
        train(*resume, output="third")


def test_a_torn_checkpoint_is_skipped_with_a_warning(tmp_path, caplog):
    """Fails if a run killed while saving crashes at every restart, or loses more than the torn checkpoint."""
    tears = {
        "unsealed": lambda torn: (torn / SEAL).unlink(),
        "missing": lambda torn: (torn / "model.safetensors").unlink(),
        "flipped": lambda torn: (torn / "model.safetensors").write_bytes(b"xyx"),
    }
    for name, tear in tears.items():
        caplog.clear()
        whole(tmp_path / name, 4)
        expected, torn = str(whole(tmp_path / name, 8)), whole(tmp_path / name, 12)
        tear(torn)
        with caplog.at_level(logging.WARNING):
            assert checkpoints.find_checkpoint(str(tmp_path / name), "auto", overwrite=False) == expected, name
        assert "checkpoint-12 is not complete" in caplog.text
        with pytest.raises(InputError, match="checkpoint-12 .*not a complete one"):
            checkpoints.find_checkpoint(str(tmp_path / name), str(torn), overwrite=False)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    """Fails if what such a run left stops the same command, or a foreign model is taken for such a rest."""
    checkpoints.claim_output_folder(str(tmp_path / "mine"), None, {})
    torn = whole(tmp_path / "mine", 4)
    (torn / SEAL).unlink()
    (tmp_path / "mine" / "config.json").touch()
    assert checkpoints.find_checkpoint(str(tmp_path / "mine"), "auto", overwrite=False) is None
    checkpoints.claim_output_folder(str(tmp_path / "mine"), None, {})
    assert not torn.exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").touch()
    with pytest.raises(InputError, match="already holds a model"):
        checkpoints.find_checkpoint(str(tmp_path / "foreign"), "auto", overwrite=False)
    with pytest.raises(InputError, match="already holds a model"):
        checkpoints.find_checkpoint(str(tmp_path / "mine" / ".." / "foreign"), None, overwrite=False)


@pytest.fixture
def opposed(pairs):
    """What is learnt of the training pairs makes validation worse: the first epoch is the best."""
    return {"train": pairs, "validation": [(a, b, 1 - label) for a, b, label in pairs]}


@pytest.mark.slow
def test_a_run_that_was_moved_keeps_its_best_epoch(train, make_corpus, opposed, tmp_path):
    """Fails if a run resumed in a moved folder ends with its last weights, since the best had an absolute path."""
    make_corpus(opposed)
    folder = train()
    best = (folder / "model.safetensors").read_bytes()
    assert best == (folder / "checkpoint-4/model.safetensors").read_bytes()
    assert best != (folder / "checkpoint-8/model.safetensors").read_bytes()
    (folder / "run.json").unlink()
    moved = folder.rename(tmp_path / "moved")
    train("--resume_from_checkpoint", "auto", output="moved")
    assert (moved / "model.safetensors").read_bytes() == best

    (moved / "run.json").unlink()
    shutil.rmtree(moved / "checkpoint-4")
    with pytest.raises(InputError, match="checkpoint-4.*--load_best_model_at_end false"):
        train("--resume_from_checkpoint", "auto", output="moved")


def test_the_best_step_is_one_that_was_saved(train, make_corpus, opposed, capsys, caplog):
    """Fails if the last weights stand under the name of a better step that was not saved."""
    make_corpus(opposed)
    steps = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "1", "--save_steps", "4")
    folder = train(*steps)
    curve = [one["eval_spearman"] for one in read_record(folder).history if "eval_spearman" in one]
    assert len(curve) == 8 and max(curve) > max(curve[3], curve[7]), "every evaluation was saved"
    best = 4 if curve[3] >= curve[7] else 8
    assert (folder / "model.safetensors").read_bytes() == (folder / f"checkpoint-{best}/model.safetensors").read_bytes()
    assert f"step {best}, the best on validation" in capsys.readouterr().out
    assert "--save_steps 4" in caplog.text and "the last step is kept" not in caplog.text


@pytest.fixture
def train(train, make_corpus, pairs):
    """As the fixture of all tests, on a corpus of its own: `train(*flags, output="run")`."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:32]})
    return partial(train, corpus, "--max_length", "8")


def test_auto_from_start_to_end(train, capsys, caplog):
    """Fails if the same command does not start, resume and end as `auto` promises, with the weights of one run."""
    folder = train("--resume_from_checkpoint", "auto")
    final = (folder / "model.safetensors").read_bytes()
    assert not (folder / "UNFINISHED").exists()
    assert not [path for path in (*folder.iterdir(), *folder.parent.iterdir()) if path.name.startswith(".")]
    with locked_elsewhere(folder), pytest.raises(InputError, match="in use"):
        train("--resume_from_checkpoint", "auto")
    before = (folder / "run.json").stat().st_mtime_ns
    capsys.readouterr()
    train("--resume_from_checkpoint", "auto")
    assert "has finished" in capsys.readouterr().out
    with pytest.raises(
        InputError, match="--num_train_epochs 2 and not 4.*--model_name_or_path.*--overwrite_output_dir"
    ):
        train("--resume_from_checkpoint", "auto", "--num_train_epochs", "4")
    assert (folder / "run.json").stat().st_mtime_ns == before

    (folder / "run.json").unlink()  # as if killed during the last save
    (folder / "model.safetensors").write_bytes(b"torn")
    with caplog.at_level(logging.INFO, logger="cosent"):
        train("--resume_from_checkpoint", "auto")
    assert "resuming from" in caplog.text
    assert (folder / "model.safetensors").read_bytes() == final

    (folder / "run.json").unlink()
    (folder / "checkpoint-8" / "optimizer.pt").write_bytes(b"torn")
    train("--resume_from_checkpoint", "auto")
    assert (folder / "model.safetensors").read_bytes() == final


def test_a_log_line_leaves_out_text(capsys):
    """Fails if text in the log, as a callback of the user's writes it, ends a training."""
    state = SimpleNamespace(is_world_process_zero=True, epoch=0.5, global_step=7)
    LogLines().on_log(None, state, None, logs={"loss": 0.25, "note": "warmer", "eval_spearman": 0.5, "eval_loss": 1.0})
    assert capsys.readouterr().err == "epoch 0.50  step 7  loss 0.25  eval_spearman 0.5\n"
