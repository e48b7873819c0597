"""A launched run tells its launcher how far it is and why it failed, and nothing to others."""

import json
import os
import subprocess
import sys

import pytest

from cosent.cli import (
    FAILURE_NAME,
    PROGRESS_NAME,
    STATUS_VARIABLE,
    Failure,
    TrainingProgress,
    clear_status,
    failures_told,
    read_failure,
    read_progress,
)
from cosent.errors import InputError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(STATUS_VARIABLE, str(tmp_path))
    return tmp_path


def test_the_progress_of_a_training_is_read_back(folder, make_corpus, pairs, train):
    """Fails if a study's bar stands still: training writes what studies read, and a bar is full at the last step."""
    train(make_corpus({"train": pairs}), "--eval_strategy", "no", "--save_strategy", "no")
    progress = read_progress(folder)
    # 2 epochs of 4 batches; it is told once a second, first after the first step.
    assert progress.steps == 8 and 1 <= progress.step <= 8
    assert progress.share == progress.step / 8
    assert TrainingProgress(8, 8).share == 1 and TrainingProgress(0, 0).share == 0


def test_a_run_that_nobody_launched_writes_nothing(tmp_path, make_corpus, pairs, train):
    """Fails if users find files in their folders that are of no use to them."""
    output = train(make_corpus({"train": pairs}), "--eval_strategy", "no", "--save_strategy", "no")
    with pytest.raises(RuntimeError), failures_told():
        raise RuntimeError("no")
    assert not list(tmp_path.rglob(PROGRESS_NAME)) and not list(tmp_path.rglob(FAILURE_NAME)) and output.is_dir()


def test_a_failure_is_told(folder):
    """Fails if a study shows the wrong reason: the first process to fail knows it, others fail for lack of it."""
    for error in (InputError("--scale is wrong."), RuntimeError("another rank is gone")):
        with pytest.raises(type(error)), failures_told():
            raise error
    assert read_failure(folder) == Failure("InputError", "--scale is wrong.")
    assert str(read_failure(folder)) == "--scale is wrong." and str(Failure("OSError", "x")) == "OSError: x"
    clear_status(folder)
    assert read_failure(folder) is None and read_progress(folder) is None


def test_a_job_tells_why_it_failed(tmp_path):
    """Fails if a mistake in a flag, found before a job begins, is told to nobody but the log."""
    command = [sys.executable, "-m", "cosent.train", "--corpus", "x", "--output_dir", "y", "--lerning_rate", "1"]
    done = subprocess.run(command, env=os.environ | {STATUS_VARIABLE: str(tmp_path)}, capture_output=True, text=True)
    told = json.loads((tmp_path / FAILURE_NAME).read_text(encoding="utf-8"))
    assert done.returncode == 2 and told["kind"] == "InputError" and "Did you mean '--learning_rate'" in told["message"]
