"""Nothing that a job has started lives longer than the job, and its memory is counted in MiB."""

import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from cosent.compute.processes import PARENT_VARIABLE, end_tree, peak_memory_mib

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


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_tree_is_ended(stubborn):
    """Fails if what a launcher has started goes on without it, even if it does not listen."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else ""
    leaf = f"import signal, time; {deaf}print('up', flush=True); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {leaf!r}])"],
        stdout=subprocess.PIPE,
    )
    started = []
    try:
        assert process.stdout.readline().strip() == b"up"
        started = psutil.Process(process.pid).children(recursive=True)
        end_tree(process, patience=0.5 if stubborn else 20.0)
        assert len(started) == 1 and process.returncode is not None
        assert wait_until(lambda: not alive(started[0])), "a killed process is gone once the system has run it again"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        end(started)


def test_memory_is_counted_in_mib():
    """Fails if a report is off by 1,024, as `ru_maxrss` is between Linux and macOS, or a peak falls."""
    block = np.ones(300 * 2**20, dtype=np.uint8)
    held = psutil.Process().memory_info().rss / 2**20
    assert held <= peak_memory_mib() * 1.01
    del block
    assert 0.99 * held <= peak_memory_mib() < 100 * held
