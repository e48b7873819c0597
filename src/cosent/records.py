"""`run.json`: what a run was, beside the model it made."""

import json
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import TrainingArguments

from cosent.schema import MANIFEST_NAME, InputError, sha256_of_file
from cosent.scores import SCORES_NAME

RECORD_NAME = "run.json"
PACKAGES = ("cosent", "torch", "transformers", "datasets", "accelerate", "peft")


def save_record(folder: str | Path, record: dict) -> None:
    text = json.dumps(record, ensure_ascii=False, indent=2, default=str)
    Path(folder, RECORD_NAME).write_text(text + "\n", encoding="utf-8")


def read_record(folder: str | Path) -> dict:
    """The record of a model folder; empty for a model that no run of ours made."""
    file = Path(folder, RECORD_NAME)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def clear_output(folder: str | Path, overwrite: bool) -> None:
    """Makes way for a run that starts from the beginning: an earlier run's record and checkpoints go.

    Raises:
        InputError: `folder` holds a model or checkpoints, and `overwrite` is not set.
    """
    folder = Path(folder)
    checkpoints = list(folder.glob("checkpoint-*"))
    models = [folder / name for name in (RECORD_NAME, "config.json", "adapter_config.json") if (folder / name).exists()]
    if not overwrite and (models or checkpoints):
        raise InputError(
            f"{folder} already holds {'a model' if models else 'checkpoints'}, which this run would replace. Name "
            "another --output_dir, pass --overwrite_output_dir, or go on with --resume_from_checkpoint auto."
        )
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)
    for name in (RECORD_NAME, SCORES_NAME):
        (folder / name).unlink(missing_ok=True)


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint to continue from: none, the one named, or with `auto` the newest whole one of the output folder.

    A run that starts from the beginning finds an empty place, see `clear_output`.
    """
    wanted = args.resume_from_checkpoint
    if wanted == "auto":
        whole = [state.parent for state in Path(args.output_dir).glob("checkpoint-*/trainer_state.json")]
        wanted = max(map(str, whole), key=lambda path: int(path.rsplit("-", 1)[1]), default=None)
    elif wanted is not None and not Path(wanted, "trainer_state.json").is_file():
        raise InputError(
            f"--resume_from_checkpoint {wanted} is not a checkpoint: it has no trainer_state.json. Pass a folder "
            "checkpoint-<step> of an earlier run, or `auto` for the newest one in --output_dir."
        )
    if wanted is None:
        clear_output(args.output_dir, args.overwrite_output_dir)
    return wanted


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
