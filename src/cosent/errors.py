"""`InputError`, the error shown to users, and context managers that raise or print it."""

import errno
import logging
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


class InputError(ValueError):
    """Invalid user input; the message says what to do, and jobs print it without a traceback.

    Every function of this package may raise it for its arguments or for the files that it reads.
    """


@contextmanager
def errors_only(*loggers: str | None) -> Iterator[None]:
    """Keeps what is no error of these loggers, by name, None for the root, out of the log of a block."""
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in loggers}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@cache
def once(log: Callable[[str], None], message: str) -> None:
    """Logs a message, by `logger.warning` for example, once per process."""
    log(message)


@contextmanager
def reading(path: str | Path, advice: str = "Copy it again, or make it again.") -> Iterator[None]:
    """Raises any error of reading a file or folder as an `InputError`: libraries have many kinds for damaged files.

    Args:
        advice: what to do about a damaged file.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        failure = system_error(error)
        remedy = advice if failure is None else "Check the path, its permissions and its disk."
        raise InputError(f"{path} cannot be read ({in_short(failure or error, path)}). {remedy}") from error


@contextmanager
def writing(path: str | Path, advice: str = "") -> Iterator[None]:
    """Raises errors of the disk while writing `path` as an `InputError`, also those wrapped by a library.

    Args:
        path: a file or folder.
        advice: what to do after the cause is removed.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if (failure := system_error(error)) is None:
            raise
        remedy = f"Check its place, permissions and free space, or name another. {advice}".rstrip()
        raise InputError(f"{path} could not be written ({in_short(failure, path)}). {remedy}") from error


def system_error(error: BaseException | None) -> Exception | None:
    """The error of the disk behind an exception: itself or one of its causes; None if there is none."""
    while isinstance(error, Exception):
        # Of a full disk, torch.save and libraries in Rust raise errors of their own.
        if isinstance(error, OSError) or re.search(r"inline_container|\(os error \d+\)|^Symlink loop", str(error)):
            return error
        error = error.__cause__
    return None


def in_short(error: Exception, path: str | Path = "") -> str:
    """An error on one line; one of the system without its number, and with its file unless that is `path`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename not in (None, str(path)) else error.strerror
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}".removesuffix(": ")


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
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        failure = system_error(error)
        if isinstance(failure, OSError) and failure.filename is not None:
            print(f"error: {in_short(failure)}. Check the path, its permissions and its disk.", file=sys.stderr)
        elif isinstance(error, OSError) and error.errno == errno.ENOSPC:  # of stdout, which has no name
            print(f"error: {error}: the output is not complete. Make room and try again.", file=sys.stderr)
            discard_stdout()
        else:
            raise
        sys.exit(2)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def reader_has_gone() -> bool:
    """Whether the reader of stdout is gone; the broken pipe may be another, such as that of a worker."""
    stdout = select.poll()
    stdout.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))


def discard_stdout() -> None:
    """Discards the rest of stdout, which would fail again when flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
