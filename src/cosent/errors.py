"""`InputError`, the error shown to users, and context managers that raise or print it."""

import errno
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Invalid user input; the message says what to do, and jobs print it without a traceback.

    Every function of this package may raise it for its arguments or for the files that it reads.
    """


@contextmanager
def writing(path: str | Path, needed: int | None = None) -> Iterator[None]:
    """Raises an `OSError`, e.g. of a full disk, as an `InputError`; `needed` are the bytes of the complete file."""
    try:
        yield
    except OSError as error:
        folder = Path(path).absolute().parent
        wants = "" if needed is None else f"; it takes {needed / 2**20:.1f} MiB"
        free = f"; {shutil.disk_usage(folder).free / 2**20:.1f} MiB are free in {folder}" if folder.is_dir() else ""
        raise InputError(
            f"{path} could not be written ({error.strerror}){wants}{free}. Make room, or name a file on another disk."
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
    earlier_hook, sys.unraisablehook = sys.unraisablehook, interrupt_again
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
        sys.unraisablehook = earlier_hook
        for number, handler in earlier.items():
            signal.signal(number, handler)


def interrupt_again(unraisable) -> None:
    """Repeats a `KeyboardInterrupt` that Python dropped, since the signal came while some `__del__` was running."""
    if unraisable.exc_type is not KeyboardInterrupt:
        return sys.__unraisablehook__(unraisable)
    repetition = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])
    repetition.daemon = True
    repetition.start()


def reader_has_gone() -> bool:
    """Whether nobody reads stdout any more; another pipe may have broken, to a worker for one."""
    stdout = select.poll()
    stdout.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))


def discard_stdout() -> None:
    """Sends what is left of stdout nowhere: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
