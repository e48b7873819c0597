"""`run.json`: what a run was, beside the model it made."""

import platform
import resource
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

PACKAGES = ("cosent", "torch", "transformers", "datasets", "accelerate", "peft")


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


def recipe(model_args, data_args, loss_args, args) -> dict:
    """Everything that was set, flags and defaults alike, in the form a recipe has."""
    return asdict(model_args) | asdict(data_args) | asdict(loss_args) | args.to_sanitized_dict()


def footprint_line(footprint: dict) -> str:
    share = footprint["trainable_parameters"] / footprint["parameters"]
    return (
        f"trained {footprint['trainable_parameters']:,} of {footprint['parameters']:,} parameters ({share:.1%}); "
        f"optimizer {footprint['optimizer_mib']:.1f} MiB, peak {footprint['peak_mib']:.0f} MiB"
    )
