"""Integrity of folders: `whole.json` lists the files of a folder, each with size and SHA-256."""

import hashlib
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from cosent.atomic import flush, write_atomically
from cosent.errors import InputError, reading

SEAL = "whole.json"
UNFINISHED = "UNFINISHED"  # in the folder of a run from its start until its record is written
# Files of a model that are sealed; cards and logs may change. Only weights have to be as they were saved.
OF_MODELS = ("*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt", "merges.txt", "*.npz")
WEIGHTS = ("*.safetensors", "*.bin", "*.onnx")
ADAPTER = "adapter/*"  # beside the merged weights, for peft alone


def model_files(folder: Path) -> list[Path]:
    """The files of a model folder that are sealed: those in it, of its modules and of its adapter."""
    files = [path for path in folder.iterdir() if any(fnmatch(path.name, pattern) for pattern in OF_MODELS)]
    places = (path for path in folder.iterdir() if re.fullmatch(r"\d+_\w+|adapter", path.name) and path.is_dir())
    files += [path for place in places for path in place.rglob("*")]
    return [path for path in files if path.is_file() and path.name != SEAL]


def seal(folder: str | Path, files: list[Path] | None = None) -> None:
    """Marks a folder as complete: flushes these files, or all, and lists them in `whole.json`."""
    folder = Path(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SEAL] if files is None else files
    flush(files)
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(files)
    }
    write_atomically(folder / SEAL, json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


def sealed_files(folder: Path) -> dict[str, tuple[int, str]] | None:
    """Size and SHA-256 of every file in `whole.json`; None without one."""
    file = folder / SEAL
    if not file.exists():
        return None
    with reading(file):
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in entries.items()}


def is_weight(name: str) -> bool:
    """Whether a file of a folder holds weights that loading reads."""
    return not fnmatch(name, ADAPTER) and any(fnmatch(name, pattern) for pattern in WEIGHTS)


def faults(folder: Path, weights_only: bool = False) -> Iterator[tuple[str, str]]:
    """Sealed files that are missing or have changed, each with its fault."""
    for name, (size, sha256) in (sealed_files(folder) or {}).items():
        path = folder / name
        if weights_only and not is_weight(name):
            continue
        if not path.is_file():
            yield name, "is missing"
        elif path.stat().st_size != size:
            yield name, f"has {path.stat().st_size:,} bytes instead of {size:,}"
        elif sha256_of_file(path) != sha256:
            yield name, "has other content than when it was saved"


def is_whole(folder: Path) -> bool:
    """Whether a folder is sealed and unchanged."""
    try:
        return sealed_files(folder) is not None and not any(faults(folder))
    except InputError:
        return False


def check(folder: Path) -> None:
    """Refuses the folder of a model that is unfinished, or whose weights are not as they were saved."""
    if (folder / UNFINISHED).exists():
        raise InputError(f"{folder} holds an unfinished run. Continue it with --resume_from_checkpoint auto.")
    for name, fault in faults(folder, weights_only=True):
        raise InputError(
            f"{folder / name} {fault}. Copy the folder again; if you changed the weights yourself, remove {SEAL}."
        )


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
