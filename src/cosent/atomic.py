"""Files and folders that are whole or not there."""

import glob
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path

import psutil

from cosent.errors import InputError, reading, writing

logger = logging.getLogger(__name__)

SHA256 = 32  # bytes


@contextmanager
def partial_file(path: str | Path) -> Iterator[Path]:
    """Yields a path next to `path` to write to; it is renamed to `path` when the block ends, or removed if it raises.

    Every call uses its own name, `<name>.<machine>-<process>-<random>.partial`, so that several processes, even on
    several machines, can write the same file, and the last one wins. What a process that was killed left behind is
    removed by the next call for the same `path` on that machine.
    """
    path = Path(path)
    mine = f"{path.name}.{re.sub(r'[^A-Za-z0-9]', '', socket.gethostname())}"
    for other in path.parent.glob(f"{glob.escape(mine)}-*-*.partial"):
        if not psutil.pid_exists(int(other.name.split("-")[-2])):
            other.unlink(missing_ok=True)
    partial = path.with_name(f"{mine}-{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
    """Writes a file that is complete from the moment it exists; text in UTF-8, with `\\n` line ends everywhere."""
    with partial_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def signed_file(path: str | Path) -> Iterator[Path]:
    """As `partial_file`, for formats whose readers know their end: the SHA-256 of the content is written behind it."""
    with writing(path), partial_file(path) as partial:
        yield partial
        with open(partial, "rb+") as file:
            file.write(hashlib.file_digest(file, "sha256").digest())


def is_intact(path: Path) -> bool:
    """Whether a file is there as `signed_file` wrote it; a damaged one is removed, with a warning."""
    if not path.is_file():
        return False
    with (
        suppress(InputError),
        reading(path),
        open(path, "rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as content,
        memoryview(content) as view,
    ):
        if hashlib.sha256(view[:-SHA256]).digest() == view[-SHA256:]:
            return True
    logger.warning("%s is damaged, and is made again.", path)
    path.unlink(missing_ok=True)
    return False
