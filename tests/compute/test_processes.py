"""Jobs leave no process behind, memory is counted in MiB, and one model serves many threads."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import psutil
import pytest
import torch

from cosent.compute.processes import PARENT_VARIABLE, end_tree, launch, peak_memory_mib, run_logged
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.embedding import evaluating

FOLLOWER = (
    "import os, time; from cosent.compute.processes import end_with_parent; "
    f"end_with_parent(int(os.environ[{PARENT_VARIABLE!r}]), every=0.05); time.sleep(600)"
)
# Starts a process between itself and the follower, as `accelerate launch` is between a study and its trainings.
LAUNCHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {FOLLOWER!r}])"


def wait_until(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        if process.is_running():
            process.kill()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_the_reason_of_a_failure(tmp_path):
    """Fails if the table of a study does not say why a run failed, or a finished run is called a failure."""
    for code, reason in (
        ("import sys; print('error: --features u', file=sys.stderr); sys.exit(2)", "--features u (all"),
        ("raise ValueError('no')", "ValueError: no (all"),
        ("import sys; sys.exit(3)", "exit status 3 (all"),
    ):
        assert run_logged([sys.executable, "-c", code], tmp_path / "logs/log.txt", 1).startswith(reason)
    assert run_logged([sys.executable, "-c", ""], tmp_path / "log.txt", 1) == ""


def test_a_child_ends_with_the_process_that_it_follows():
    """Fails if SIGKILL of a study or of an encode job leaves its workers computing for days."""
    variable = f"os.environ[{PARENT_VARIABLE!r}] = str(os.getpid())"
    code = f"import os, subprocess, sys; {variable}\nsubprocess.run([sys.executable, '-c', {LAUNCHER!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code])
    started = []
    try:
        family = psutil.Process(parent.pid)
        assert wait_until(lambda: len(family.children(recursive=True)) == 2)
        started = family.children(recursive=True)
        assert wait_until(lambda: started[-1].num_threads() > 1), "it does not watch"
        parent.kill()
        parent.wait()
        assert wait_until(lambda: not any(map(alive, started)))
    finally:
        parent.kill()
        parent.wait()
        end(started)


def test_a_tree_is_ended():
    """Fails if what a launcher has started goes on without it, even if it does not listen."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    leaf = f"import signal, time; {deaf}; print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leaf!r}])"],
        stdout=subprocess.PIPE,
    )
    started = []
    try:
        assert process.stdout.readline().strip() == b"up"
        started = psutil.Process(process.pid).children(recursive=True)
        end_tree(process, patience=0.5)
        assert len(started) == 1 and process.returncode is not None
        assert wait_until(lambda: not alive(started[0])), "a killed process is gone once the system has run it again"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        end(started)


def test_one_gpu_is_not_launched_on_a_cpu(monkeypatch, capsys):
    """Fails if a run that was to use a GPU spends hours on the CPU."""
    monkeypatch.setattr(sys, "argv", ["processes", "--config_file", "recipes/accelerate/single_gpu.yaml"])
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        launch()
    assert "--launch single_gpu" in capsys.readouterr().err


def test_memory_is_counted_in_mib():
    """Fails if a report is off by 1,024, as `ru_maxrss` is between Linux and macOS, or a peak falls."""
    block = np.ones(300 * 2**20, dtype=np.uint8)
    held = psutil.Process().memory_info().rss / 2**20
    assert held <= peak_memory_mib() * 1.01
    del block
    assert 0.99 * held <= peak_memory_mib() < 100 * held


THREADS = 8
TEXTS = [f"第{number}个问题怎么还款" * (1 + number % 9) for number in range(24)]


def in_threads(call: Callable[[int], object]) -> list:
    """What each of `THREADS` threads gets from three calls of its own, all of them begun at once."""
    start = Barrier(THREADS)

    def work(thread: int) -> list:
        start.wait()
        return [call(thread) for _ in range(3)]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for results in pool.map(work, range(THREADS)) for result in results]


@pytest.fixture(params=["encode", "pairs"])
def task(request, tiny_model):
    """A model, and a function of it and of the number of a thread; even threads have texts that have to be cut."""
    if request.param == "pairs":
        model = CrossEncoder.from_pretrained(str(tiny_model), 1, max_length=40)
        return model, lambda thread: model.similarity(texts_of(thread), texts_of(thread)[::-1]).tolist()
    model = SentenceEncoder.from_pretrained(str(tiny_model), max_length=20, dropout=0.5)
    return model, lambda thread: model.encode(texts_of(thread)).tolist()


def texts_of(thread: int) -> list[str]:
    return TEXTS[: 10 + thread] if thread % 2 == 0 else [text[:8] for text in TEXTS[: 10 + thread]]


def test_eight_threads_get_what_one_gets(task):
    """Fails if a web server's requests fail at random, or get the vector of a text that was cut, or dropout."""
    model, call = task
    model.train()  # every call turns dropout off, and on again behind the last one
    alone = [call(thread) for thread in range(THREADS)]
    together = in_threads(call)
    assert together == [result for result in alone for _ in range(3)]
    assert model.training and model.backbone.training
    assert len(set(map(repr, alone))) == THREADS, "not all threads had work of their own"


def test_the_last_thread_turns_dropout_on_again():
    """Fails if the thread that is done first puts dropout into the vectors of the others."""
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout().eval())
    first, second = evaluating(model), evaluating(model)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not any(module.training for module in model.modules())
    second.__exit__(None, None, None)
    assert [module.training for module in model.modules()] == [True, True, False], "a frozen part stays as it was"
