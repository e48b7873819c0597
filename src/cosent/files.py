"""Atomic writing: files and folders appear complete or not at all."""

import glob
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def partial_file(path: str | Path) -> Iterator[Path]:
    """Yields a path next to `path` to write to; it is renamed to `path` when the block ends.

    If the block raises, the partial file is removed and `path` is as it was. A process that is killed leaves its
    partial file behind; the next call for the same `path` on that machine removes it. Every call uses its own name,
    `<name>.<machine>-<process>-<random>.partial`, so that several processes, even on several machines, can write the
    same file, and the last one wins.
    """
    path = Path(path)
    remove_abandoned(path)
    partial = path.with_name(f"{path.name}.{machine()}-{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def machine() -> str:
    return re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())


def remove_abandoned(path: Path) -> None:
    """Removes the partial files of a file that processes of this machine left when they were killed."""
    for partial in path.parent.glob(f"{glob.escape(path.name)}.{machine()}-*.partial"):
        found = re.fullmatch(r"-(\d+)-\w{8}\.partial", partial.name.removeprefix(f"{path.name}.{machine()}"))
        with suppress(FileNotFoundError):  # another call was faster
            if found and not still_written(partial, int(found[1])):
                partial.unlink()


def still_written(partial: Path, process: int) -> bool:
    """Whether a process that made a partial file still runs; a later one may have its number."""
    try:
        return psutil.Process(process).create_time() <= partial.stat().st_mtime + 1  # a clock may be that coarse
    except psutil.NoSuchProcess:
        return False


@contextmanager
def complete_folder(folder: Path) -> Iterator[Path]:
    """Yields a new folder next to `folder`, which gets that name when the block ends, or is removed if it raises."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        apply_umask(partial)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def apply_umask(folder: str | Path) -> None:
    """Gives the weights in a folder the permissions of any new file; safetensors writes them for their owner alone."""
    umask = os.umask(0o077)  # reading it means setting it
    os.umask(umask)
    for file in Path(folder).rglob("*.safetensors"):
        file.chmod(0o666 & ~umask)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file that is complete from the moment it exists; text in UTF-8, with `\\n` line ends everywhere.

    Raises:
        OSError: the file cannot be written; an earlier one of that name is untouched.
    """
    with partial_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
