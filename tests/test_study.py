"""A study trains in processes of its own, which do not outlive it."""

import json
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
from cosent.study import StudyArguments

ROOT = Path(__file__).parents[1]


def test_a_run_is_launched(tmp_path, make_corpus, pairs, tiny_model, capsys, monkeypatch):
    """Fails if a study does not train with its flags or the user's threads, or a failure does not name its reason."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))  # the study's own choice would be half of them
    corpus = make_corpus({"train": pairs[:8], "validation": pairs[:16], "test": pairs[16:32]})
    (tmp_path / "cosent.yaml").write_text("num_train_epochs: 1\npooling: mean\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1]}
    (tmp_path / "s.yaml").write_text(
        yaml.safe_dump(content | {"variants": {"a": {"packing": False}, "b": {"features": ["u"]}}})
    )
    arguments = ["--data_dir", corpus.parent, "--results", tmp_path, "--runs", tmp_path / "runs"]
    arguments += ["--parallel", "2", "--set", f"model_name_or_path={tiny_model}", "--accelerate_config"]
    arguments += [ROOT / "recipes/accelerate/cpu.yaml"]
    assert study.main(*parse(list(map(str, [tmp_path / "s.yaml", *arguments])), StudyArguments)) == 1
    assert "cosent-b-made_up-1 failed: error: --features are those of" in capsys.readouterr().err
    results = tmp_path / f"s-model_name_or_path={tiny_model.name}"
    kept = json.loads((results / "cosent-a-made_up-1.json").read_text())
    assert kept["recipe"]["packing"] is False and kept["speed"]["train_pairs_per_second"] > 0
    assert kept["threads"] == os.cpu_count()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_leaves_nothing_running(tmp_path, make_corpus, pairs, tiny_model, how):
    """Fails if Ctrl-C or a kill leaves a run training in the dark, or starts the next one."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:16]})
    (tmp_path / "cosent.yaml").write_text(f"num_train_epochs: 100000\nmodel_name_or_path: {tiny_model}\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1, 2]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "cosent.study", tmp_path / "s.yaml", "--data_dir", corpus.parent]
    command += ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    command += ["--accelerate_config", ROOT / "recipes/accelerate/cpu.yaml"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/s/*/checkpoint-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in errors
    commands = [" ".join(other.info["cmdline"] or []) for other in psutil.process_iter(["cmdline"])]
    assert any(commands) and not [command for command in commands if str(tmp_path / "runs") in command]
    assert len(list(tmp_path.glob("runs/s/*"))) == 1
