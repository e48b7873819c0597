"""`InputError`, the error shown to users, and context managers that raise or print it."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Invalid user input; the message says what to do, and jobs print it without a traceback."""


@contextmanager
def writing(path: str | Path, needed: int | None = None) -> Iterator[None]:
    """Explains to the user why a file could not be written, e.g. because the disk is full.

    Args:
        needed: bytes of the complete file, if known.

    Raises:
        InputError: an `OSError` in the block.
    """
    try:
        yield
    except OSError as error:
        folder = Path(path).absolute().parent
        wants = "" if needed is None else f"; it takes {needed / 2**20:.1f} MiB"
        free = f"{shutil.disk_usage(folder).free / 2**20:.1f} MiB are free in {folder}" if folder.is_dir() else ""
        raise InputError(
            f"{path} could not be written ({error.strerror}){wants}; {free or f'there is no folder {folder}'}. Nothing "
            "was kept of it. Make room, or name a file on another disk."
        ) from error


@contextmanager
def messages_for_users() -> Iterator[None]:
    """Ends a job with one line on stderr: exit status 2 for wrong user input, 130 after SIGINT or SIGTERM.

    SIGTERM (from `docker stop`, `timeout`, Slurm) acts like Ctrl-C: partial files and child processes are removed. The
    handler of SIGINT is set too, since a process started in the background by a shell script would ignore it.
    """
    signals = (signal.SIGINT, signal.SIGTERM)
    earlier = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error}: the output is not complete. Make room and try again.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # flushing stdout at exit would fail again
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
