"""`InputError`, the error shown to users, and context managers that raise or print it."""

import errno
import os
import select
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

    Where the reader of stdout has gone, as in `cosent ... | head`, it ends in silence with 141, as of SIGPIPE.

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
    except BrokenPipeError:
        if not reader_has_gone():
            raise
        discard_stdout()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: {error}: the output is not complete. Make room and try again.", file=sys.stderr)
        discard_stdout()
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def reader_has_gone() -> bool:
    """Whether nobody reads stdout any more; another pipe may have broken, to a worker for one."""
    stdout = select.poll()
    stdout.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))


def discard_stdout() -> None:
    """Sends what is left of stdout nowhere: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
