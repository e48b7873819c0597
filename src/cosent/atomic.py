"""Files and folders that are whole or not there: atomic writes, locks on job outputs, and seals.

A seal, `whole.json`, lists the files of a folder, each with size and SHA-256.
"""

import glob
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from cosent.errors import InputError, reading, writing

logger = logging.getLogger(__name__)

MACHINE = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())
SEAL = "whole.json"
UNFINISHED = "UNFINISHED"  # in the folder of a run from its start until its record is written
# Files of a model that are sealed; cards and logs may change. Only weights have to be as they were saved.
OF_MODELS = ("*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt", "merges.txt", "*.npz")
WEIGHTS = ("*.safetensors", "*.bin", "*.onnx")
ADAPTER = "adapter/*"  # beside the merged weights, for peft alone


@contextmanager
def partial_file(path: str | Path) -> Iterator[Path]:
    """Yields a path next to `path` to write to; it is renamed to `path` when the block ends, or removed if it raises.

    Every call uses its own name, `<name>.<machine>-<process>-<random>.partial`, so that several processes, even on
    several machines, can write the same file, and the last one wins. What a process that was killed left behind is
    removed by the next call for the same `path` on that machine. Of a link, the file that it leads to is written.
    """
    with writing(path):
        path = Path(os.path.realpath(path))
        for other in leftovers(path.parent, path.name):
            other.unlink(missing_ok=True)
        partial = partial_path(path.parent, path.name, "partial")
        try:
            yield partial
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def complete_folder(folder: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a new hidden folder, which is renamed to `folder` when the block ends, or removed if it raises.

    With `overwrite` a folder that is there is replaced: either the old or the new one is there, except for an instant
    in which a SIGKILL makes it absent; `restore` then brings the old one back. Names and remains of processes that were
    killed are as of `partial_file`.
    """
    with writing(folder):
        folder = target(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        restore(folder)
        partial = partial_path(folder.parent, f".{folder.name}", "partial")
        partial.mkdir()
        try:
            yield partial
            apply_umask(partial)
            flush(partial.rglob("*"))
            replace_folder(partial, folder, overwrite)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def replace_folder(new: Path, folder: Path, overwrite: bool) -> None:
    """Renames a folder to `folder`; with `overwrite` replaces the old one, which is restored if that fails."""
    if not (overwrite and folder.exists()):
        new.rename(folder)
        return
    old = partial_path(folder.parent, f".{folder.name}", "replaced")
    try:
        with held_signals():
            folder.rename(old)
            try:
                new.rename(folder)
            except BaseException:
                old.rename(folder)
                raise
    finally:
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path) -> None:
    """Removes leftovers of dead processes next to a folder, and restores it if one of them was replacing it."""
    for other in leftovers(folder.parent, f".{folder.name}"):
        if other.suffix == ".replaced" and not folder.exists():
            logger.warning("%s is back: the job that was replacing it was killed.", folder)
            other.rename(folder)
        else:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def filled_folder(folder: str | Path, last: str, clear: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a hidden folder inside `folder`; its content moves up when the block ends, and is removed if it raises.

    Then `clear` is called with the folder, and files and folders of the same names are replaced, the one named `last`
    at the end. Names and remains of processes that were killed are as of `partial_file`.
    """
    folder = writable_folder(folder)
    for other in leftovers(folder, ".final"):
        shutil.rmtree(other, ignore_errors=True)
    partial = partial_path(folder, ".final", "partial")
    partial.mkdir()
    try:
        yield partial
        apply_umask(partial)
        flush(partial.rglob("*"))
        with held_signals():
            clear(folder)
            for path in sorted(partial.iterdir(), key=lambda path: path.name == last):
                if path.is_dir():
                    shutil.rmtree(folder / path.name, ignore_errors=True)
                os.replace(path, folder / path.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(output: str | Path) -> Iterator[None]:
    """Locks a file or folder against other jobs on this machine; raises an `InputError` if it is in use.

    The lock is `.<name>.lock` next to the output, held by the operating system, which ends it with the process; it is
    removed at the end. A thread may lock an output again. Where no lock can be made, a warning says so.
    """
    path = target(output)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.lock")
    lock = FileLock(file, is_singleton=True)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(f"{output} is in use by another job. Wait for it, stop it, or name another.") from error
    except (OSError, NotImplementedError) as error:
        logger.warning("%s cannot be locked (%s): start no other job that writes it.", output, error)
        yield
        return
    try:
        if lock.lock_counter == 1:
            restore(path)
        yield
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):  # Windows removes no open file
                file.unlink()
        lock.release()


def target(path: str | Path) -> Path:
    """Absolute path with links resolved; a broken link is an error."""
    place = Path(os.path.realpath(path))
    if Path(path).is_symlink() and not place.exists():
        raise InputError(f"{path} is a link to {place}, which does not exist. Make that folder, or remove the link.")
    return place


def writable_folder(folder: str | Path) -> Path:
    """Folder at a path, created if missing."""
    place = target(folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


def partial_path(folder: Path, name: str, kind: str) -> Path:
    """A path in a folder that no other process uses: `<name>.<machine>-<process>-<random>.<kind>`."""
    return folder / f"{name}.{MACHINE}-{os.getpid()}-{secrets.token_hex(4)}.{kind}"


def leftovers(folder: Path, name: str) -> list[Path]:
    """Paths of `partial_path` left behind by dead processes of this machine."""
    paths = folder.glob(f"{glob.escape(f'{name}.{MACHINE}')}-*-*.*")
    matches = [(path, re.search(r"-(\d+)-[0-9a-f]{8}\.(partial|replaced)$", path.name)) for path in paths]
    return [path for path, match in matches if match and not is_alive(int(match[1]), path)]


def is_alive(process: int, path: Path) -> bool:
    """Whether the process that created a path is alive; its number may be reused, as in a restarted container."""
    try:
        return psutil.Process(process).create_time() <= path.stat().st_ctime + 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return psutil.pid_exists(process) and path.exists()


@contextmanager
def held_signals() -> Iterator[None]:
    """Delays SIGINT and SIGTERM until the block ends; only the main thread receives them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def flush(paths: Iterable[Path]) -> None:
    """Writes files to the disk: after a power failure, one of the right size may be full of zeros otherwise."""
    for path in sorted(paths):
        if path.is_file():
            with open(path, "rb+" if os.name == "nt" else "rb") as file:  # Windows flushes only what it may write
                os.fsync(file.fileno())


def apply_umask(folder: str | Path) -> None:
    """Gives the weights in a folder the permissions of any new file; safetensors writes them for their owner alone."""
    umask = os.umask(0o077)  # reading it means setting it
    os.umask(umask)
    for file in Path(folder).rglob("*.safetensors"):
        file.chmod(0o666 & ~umask)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file that is complete from the moment it exists; text in UTF-8, with `\\n` line ends everywhere."""
    with partial_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


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


def refuse_damaged(folder: Path) -> None:
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
