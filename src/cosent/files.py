"""Atomic writing: files appear complete or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def partial_file(path: str | Path) -> Iterator[Path]:
    """Yields a path next to `path` to write to; it is renamed to `path` when the block ends.

    If the block raises, the partial file is removed and `path` is as it was. A process that is killed leaves its
    partial file behind, which no later one reads: every call uses its own name,
    `<name>.<process>-<random>.partial`, so that several processes, even on several machines, can write the same file,
    and the last one wins.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Writes a file that is complete from the moment it exists; text in UTF-8, with `\\n` line ends everywhere.

    Raises:
        OSError: the file cannot be written; an earlier one of that name is untouched.
    """
    with partial_file(path) as partial:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
