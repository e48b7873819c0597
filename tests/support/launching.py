"""Jobs in several processes that accelerate launches, jobs in this one, and how far apart their models are."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from safetensors.torch import load_file

from cosent.cli import arguments_of, module_of
from cosent.compute.processes import end_tree
from cosent.flags import parse

ROOT = Path(__file__).parents[2]
# Of a run of two epochs of four steps: a checkpoint inside each; and a worker, which reads ahead of them.
WITHIN_EPOCHS = ("--save_strategy", "steps", "--save_steps", "3", "--save_total_limit", "3")
WITHIN_EPOCHS += ("--eval_strategy", "steps", "--eval_steps", "3")
WORKER = ("--dataloader_num_workers", "1", "--dataloader_persistent_workers", "true")


def later_wins(words: Iterable[str]) -> list[str]:
    """A command line without flags that a later one replaces, as users must write it: the defaults of a test first."""
    given: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            name = word.partition("=")[0].removeprefix("--").removeprefix("no_")
            given[name] = [word]
        else:
            given[name].append(word)
    return [word for flag in given.values() for word in flag]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(
    config: str, program: list[str], machines: int = 1, processes: int = 2, precision: str = "no", **environment: str
) -> list[str]:
    """Runs a program in processes that accelerate launches, on one or more "machines"; returns stdout of each machine.

    Args:
        config: a file of `recipes/accelerate`, without its ending.
        program: what to run and its arguments.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch"]
    command += ["--config_file", str(ROOT / f"recipes/accelerate/{config}.yaml")]
    command += ["--mixed_precision", precision, "--num_processes", str(processes), "--num_machines", str(machines)]
    command += ["--main_process_ip", "127.0.0.1", "--main_process_port", str(free_port())]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([f"{ROOT}/src", str(ROOT), *sys.path[1:]])}
    started = [
        subprocess.Popen(
            [*command, "--machine_rank", str(machine), *program],
            env=os.environ | settings | environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for machine in range(machines)
    ]
    try:
        ended = [process.communicate(timeout=500) for process in started]
    finally:  # of a launch that hangs, nothing is left
        for process in started:
            if process.poll() is None:
                end_tree(process)
    for process, (_, errors) in zip(started, ended, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return [output for output, _ in ended]


def run_here(job: str, *arguments: str) -> None:
    """Runs a job in this process."""
    main = import_module(module_of(job)).main
    main(*parse(later_wins(arguments), *arguments_of(main)))


def apart(first: Path, second: Path, start: Path) -> float:
    """Largest difference of two trained models' weights, relative to the way that training took them."""
    one, two, began = (load_file(folder / "model.safetensors") for folder in (first, second, start))
    shared = {name: name.removeprefix("bert.") for name in one if name.removeprefix("bert.") in began}
    assert len(shared) > 30
    way = max((one[name] - began[old]).abs().max() for name, old in shared.items())
    assert way > 1e-3, "nothing was trained"
    return float(max((one[name] - two[name]).abs().max() for name in one) / way)


def history(folder: Path, name: str) -> list[float]:
    """What a run logged by one name, in the order of the steps."""
    entries = json.loads((folder / "run.json").read_text(encoding="utf-8"))["history"]
    return [entry[name] for entry in entries if name in entry]
