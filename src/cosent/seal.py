"""Integrity of folders: `whole.json` lists the files of a folder, each with size and SHA-256."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path, PurePosixPath

from cosent.atomic import write_atomically
from cosent.errors import InputError, reading

SEAL = "whole.json"
UNFINISHED = "UNFINISHED"  # in the folder of a run from its start until its record is written
# Of a model folder: what it consists of, and what of that only other tools and jobs read. Cards and logs may change.
OF_MODELS = ("*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt", "merges.txt", "*.npz")
UNREAD = ("adapter/*", "*.npz")
REMEDY = "Copy or download the folder again; after a change of your own, accept it by `cosent verify {} --accept`."
REMEMBERED = 32 * 2**20  # bytes of a file whose hash is kept in the user's cache; reading less takes 0.03 s
MOST_REMEMBERED = 1000  # files
SETTLED = 2 * 10**9  # nanoseconds: a file that changed later may change again and keep its time


def model_files(folder: Path) -> list[Path]:
    """The files of a model folder that are sealed: those in it, of its modules and of its adapter."""
    files = [path for path in folder.iterdir() if any(fnmatch(path.name, pattern) for pattern in OF_MODELS)]
    places = (path for path in folder.iterdir() if re.fullmatch(r"\d+_\w+|adapter", path.name) and path.is_dir())
    files += [path for place in places for path in place.rglob("*")]
    return [path for path in files if path.is_file() and path.name != SEAL]


def seal(folder: str | Path, files: list[Path] | None = None) -> None:
    """Marks a folder as complete: lists these files, or all, in `whole.json`, which is written atomically.

    The files are flushed first: after a power failure, one of the right size may be full of zeros otherwise.
    """
    folder = Path(folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != SEAL] if files is None else files
    entries = {}
    for path in sorted(files):
        with open(path, "rb+" if os.name == "nt" else "rb") as file:  # Windows flushes only what is open for writing
            os.fsync(file.fileno())
        entries[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": hash_of(path)}
    write_atomically(folder / SEAL, json.dumps(entries, ensure_ascii=False, indent=1) + "\n")


def sealed_files(folder: Path) -> dict[str, tuple[int, str]] | None:
    """Size and SHA-256 of every file in `whole.json`; None without one."""
    file = folder / SEAL
    if not file.exists():
        return None
    with reading(file, advice=REMEDY.format(folder)):
        entries = json.loads(file.read_text(encoding="utf-8"))
        if outside := [name for name in entries if ".." in PurePosixPath(name).parts or Path(name).is_absolute()]:
            raise ValueError(f"it names {outside[0]}")
        return {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in entries.items()}


def faults(folder: Path) -> Iterator[tuple[str, str]]:
    """Sealed files of a folder that changed, each with its fault."""
    for name, (size, sha256) in (sealed_files(folder) or {}).items():
        path = folder / name
        if not path.is_file():
            yield name, "is missing"
        elif path.stat().st_size != size:
            yield name, f"has {path.stat().st_size:,} bytes instead of {size:,}"
        elif sha256_of_file(path) != sha256 != hash_of(path):
            yield name, "has other content than when it was saved"


def is_whole(folder: Path) -> bool:
    """Whether a folder is sealed and unchanged."""
    try:
        return sealed_files(folder) is not None and not any(faults(folder))
    except InputError:
        return False


def check(folder: Path) -> None:
    """Refuses the folder of a model that is unfinished, or changed since it was sealed."""
    if (folder / UNFINISHED).exists():
        raise InputError(f"{folder} holds an unfinished run. Continue it with --resume_from_checkpoint auto.")
    for name, fault in faults(folder):
        if not any(fnmatch(name, pattern) for pattern in UNREAD):
            raise InputError(f"{folder / name} {fault}. {REMEDY.format(folder)}")


def hash_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_file(path: str | Path) -> str:
    """SHA-256 of a file; it is not read again as long as its size and times stay."""
    path, known = Path(path), known_hashes()
    stat, key = path.stat(), str(path.resolve())
    state = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    if known.get(key, [])[:3] == state:
        return known[key][3]
    sha256 = hash_of(path)
    if time.time_ns() - max(state[1:]) > SETTLED:
        known[key] = [*state, sha256]
        if stat.st_size >= REMEMBERED:
            with suppress(OSError, RuntimeError):  # a cache that cannot be written, or no home: the file is read again
                large = [(key, one) for key, one in (saved_hashes() | known).items() if one[0] >= REMEMBERED]
                hashes_file().parent.mkdir(parents=True, exist_ok=True)
                write_atomically(hashes_file(), json.dumps(dict(large[-MOST_REMEMBERED:])))
    return sha256


def hashes_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cosent", "hashes.json")


@cache
def known_hashes() -> dict[str, list]:
    """Size, times and SHA-256 of files by path, of this process and of earlier ones."""
    return saved_hashes()


def saved_hashes() -> dict[str, list]:
    """Hashes of earlier processes; empty if unreadable."""
    try:
        saved = json.loads(hashes_file().read_text(encoding="utf-8"))
        return {key: one for key, one in saved.items() if [type(value) for value in one] == [int, int, int, str]}
    except (OSError, RuntimeError, ValueError, AttributeError, TypeError):
        return {}
