"""End of a run: its model card, its record, and the Hub if asked."""

import platform
import shlex
import subprocess
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

import cosent
from cosent.compute.processes import peak_memory_mib
from cosent.reporting.card import upload, write_card
from cosent.run import Environment, Footprint, RunRecord
from cosent.training.trainer import ResumableTrainer


def finish(trainer: ResumableTrainer, record: RunRecord) -> None:
    """Writes card and record into the output folder, and publishes it with --push_to_hub; for the main process.

    Raises:
        InputError: the Hub refuses; the run has finished all the same.
    """
    args = trainer.args
    write_card(args.output_dir, record)
    record.save(args.output_dir)  # from here on the run counts as finished
    if args.push_to_hub:
        address = upload(args.output_dir, trainer.hub_model_id, True, "End of training", args.hub_token)
        print(f"published: {address}")


def model_line(folder: str, record: RunRecord) -> str:
    """Where the model is, and the command to try it."""
    trained = f"model in {folder} ({record.train_seconds:.0f} s of training)"
    return f"{trained}\nnext: cosent similarity --model {shlex.quote(str(folder))} 怎么还款 如何还款"


PACKAGES = ("torch", "transformers", "datasets", "accelerate", "peft")


def environment() -> Environment:
    """Versions, commit and device. Jobs call it before they train, so that a failure does not cost a night."""
    cuda = torch.cuda.is_available()
    return Environment(
        versions={"cosent": own_version(), **{name: version(name) for name in PACKAGES}}
        | {"python": platform.python_version()},
        commit=commit(),
        device=torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        threads=torch.get_num_threads(),
    )


def own_version() -> str:
    """The installed version, or that of a source tree that is not installed."""
    try:
        return version("cosent")
    except PackageNotFoundError:
        return cosent.__version__


def commit() -> str | None:
    """Commit of the checkout that this package runs from, with `+` if it has changes; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git here
        return None
    return result.stdout.strip() or None


def footprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Footprint:
    """Model size and memory of training on this process."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    states = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
    states = [value.to_local() if isinstance(value, DTensor) else value for value in states]  # this process's shard
    bytes_of_states = sum(value.numel() * value.element_size() for value in states if torch.is_tensor(value))
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_memory_mib()
    return Footprint(
        parameters=sum(size for size, _ in sizes),
        trainable_parameters=sum(size for size, trainable in sizes if trainable),
        optimizer_mib=round(bytes_of_states / 2**20, 2),
        peak_mib=round(peak, 1),
    )


def recipe(args, *others) -> dict:
    """All settings, flags and defaults alike, in the form of a recipe.

    Args:
        args: `TrainingArguments`.
        others: the other argument dataclasses of the job.
    """
    settings: dict[str, Any] = {}
    for arguments in others:
        settings |= asdict(arguments)
    return settings | args.to_sanitized_dict()
