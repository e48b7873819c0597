"""`InputError`, the error for users, what becomes one, and how a job ends with one."""

import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Something the user gave is wrong, and the message says what to do: jobs print it without a traceback."""


@contextmanager
def writing(path: str | Path, needed: int | None = None) -> Iterator[None]:
    """Says in the user's words why a file could not be written, as on a full disk.

    Args:
        needed: bytes of the whole file, where that is known.

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
    """Ends a job with one line on stderr: exit status 2 where the user's input is wrong, 130 after SIGINT or SIGTERM.

    SIGTERM (of `docker stop`, `timeout`, Slurm) is a Ctrl-C here: partial files and child processes go. SIGINT is asked
    for too, since a process that a shell script starts in the background (`make test &`) would ignore it.
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
        print(f"error: {error}: what was being written is not complete. Make room and try again.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what stdout still holds would fail again when Python ends
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
