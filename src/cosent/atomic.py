"""Atomic writes of files and folders, and locks on job outputs."""

import glob
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
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from cosent.errors import InputError, writing

logger = logging.getLogger(__name__)

MACHINE = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())


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
