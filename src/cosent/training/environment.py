"""`run.json`: what a run was, beside the model it made."""

import json
import os
import platform
import resource
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

from cosent.schema import MANIFEST_NAME, sha256_of_file

RECORD_NAME = "run.json"
UNFINISHED = "UNFINISHED"  # stands in the folder of a run from its start until its record does
PACKAGES = ("cosent", "torch", "transformers", "datasets", "accelerate", "peft")


def save_record(folder: str | Path, record: dict) -> None:
    """Writes the record of a finished run, which appears at once: where it stands, the run has finished."""
    text = json.dumps(record, ensure_ascii=False, indent=2, default=str)
    partial = Path(folder, f"{RECORD_NAME}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    os.replace(partial, Path(folder, RECORD_NAME))
    Path(folder, UNFINISHED).unlink(missing_ok=True)


def read_record(folder: str | Path) -> dict:
    """The record of a model folder; empty for a model that no run of ours made."""
    file = Path(folder, RECORD_NAME)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def footprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> dict:
    """What training took on this process: parameters, trainable ones, MiB of optimizer state and peak MiB.

    The peak is that of the GPU's allocator, or on a CPU the resident memory of the whole process.
    """
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    states = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
    bytes_of_states = sum(value.numel() * value.element_size() for value in states if torch.is_tensor(value))
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {
        "parameters": sum(size for size, _ in sizes),
        "trainable_parameters": sum(size for size, trainable in sizes if trainable),
        "optimizer_mib": round(bytes_of_states / 2**20, 2),
        "peak_mib": round(peak, 1),
    }


def environment() -> dict:
    """Versions, commit, device and threads: what another machine needs to know to judge a figure."""
    cuda = torch.cuda.is_available()
    return {
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
        "commit": commit(),
        "device": torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
    }


def commit() -> str | None:
    """Commit of the checkout this package runs from, with `+` when it has changes; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git here
        return None
    return result.stdout.strip() or None


def corpus_record(folder: Path) -> dict:
    return {"folder": str(folder), "manifest_sha256": sha256_of_file(folder / MANIFEST_NAME)}
