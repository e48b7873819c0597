"""A study trains in processes of its own, which do not outlive it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from cosent import study
from cosent.cli import parse
from cosent.studies.results import Result
from cosent.study import StudyArguments

ROOT = Path(__file__).parents[1]
ACCELERATE = ["--accelerate_config", str(ROOT / "recipes/accelerate/cpu.yaml")]


@pytest.mark.slow
def test_a_run_is_launched(tmp_path, make_corpus, pairs, tiny_model, capsys, monkeypatch):
    """Fails if a study does not train with its flags or the user's threads, or a failure does not name its reason."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))  # the study's own choice would be half of them
    corpus = make_corpus({"train": pairs[:8], "validation": pairs[:16], "test": pairs[16:32]})
    (tmp_path / "cosent.yaml").write_text("num_train_epochs: 1\npooling: mean\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1]}
    variants = {"a": {"packing": False}, "b": {"features": ["u"]}}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content | {"variants": variants}))
    arguments = ["--data_dir", corpus.parent, "--results", tmp_path, "--runs", tmp_path / "runs"]
    arguments += ["--parallel", "2", "--set", f"model_name_or_path={tiny_model}", *ACCELERATE]
    assert study.main(*parse(list(map(str, [tmp_path / "s.yaml", *arguments])), StudyArguments)) == 1
    assert "cosent-b-made_up-1 failed: --features are those of" in capsys.readouterr().err
    results = tmp_path / f"s-model_name_or_path={tiny_model.name}"
    kept = Result.read(results / "cosent-a-made_up-1.json")
    assert kept.recipe["packing"] is False and kept.speed.train_pairs_per_second > 0
    assert kept.environment.threads == os.cpu_count()


@pytest.fixture
def start_study(tmp_path, make_corpus, pairs, tiny_model):
    """Returns a function that starts a study of two endless runs and waits until the first one trains.

    Whatever the test does, nothing of the study is left when it ends.
    """
    started = []

    def start(**options) -> subprocess.Popen:
        corpus = make_corpus({"train": pairs, "validation": pairs[:16]})
        recipe = (
            f"num_train_epochs: 100000\neval_strategy: 'no'\nsave_strategy: 'no'\nmodel_name_or_path: {tiny_model}\n"
        )
        (tmp_path / "cosent.yaml").write_text(recipe)
        content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1, 2]}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
        command = [sys.executable, "-m", "cosent.study", tmp_path / "s.yaml", "--data_dir", corpus.parent]
        command += ["--results", tmp_path / "results", "--runs", tmp_path / "runs", *ACCELERATE]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, **options)
        started.append(process)
        while not (progress := list(tmp_path.glob("runs/s/*/progress.json"))):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
        assert len(progress) == 1
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()
    for other in of_study(tmp_path):
        other.kill()


def of_study(folder: Path) -> list[psutil.Process]:
    """Launchers and trainings of the studies in a folder."""
    running = [other for other in psutil.process_iter(["cmdline", "status"]) if other.info["cmdline"]]
    assert running, "processes cannot be listed here"
    return [other for other in running if str(folder / "runs/s") in " ".join(other.info["cmdline"])]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_leaves_nothing_running(tmp_path, start_study, how):
    """Fails if Ctrl-C or a kill leaves a run training in the dark, or starts the next one.

    Shells start background jobs of scripts with SIGINT ignored, cron and CI start whole sessions that way.
    """
    process = start_study(preexec_fn=lambda: signal.signal(how, signal.SIG_IGN))
    assert len(of_study(tmp_path)) == 2, "a launcher and a training"
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command continues" in errors
    assert not of_study(tmp_path) and len(list(tmp_path.glob("runs/s/*"))) == 1


@pytest.mark.slow
def test_a_killed_study_leaves_nothing_running(tmp_path, start_study):
    """Fails if trainings go on for days after the study that started them was killed."""
    process = start_study()
    assert of_study(tmp_path)
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while of_study(tmp_path) and time.monotonic() < end:
        time.sleep(0.2)
    assert not of_study(tmp_path)
