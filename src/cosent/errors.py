"""`InputError`, the error shown to users, and context managers that raise or print it."""

import errno
import os
import re
import select
import shutil
import signal
import struct
import sys
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pickle import UnpicklingError

from safetensors import SafetensorError


class InputError(ValueError):
    """Invalid user input; the message says what to do, and jobs print it without a traceback.

    Every function of this package may raise it for its arguments or for the files that it reads.
    """


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ADVICE = {
    **dict.fromkeys(FULL, "Make room, or name a place on another disk."),
    errno.EROFS: "Name a place that is not read-only.",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Change its permissions, or name another place."),
    errno.ENOENT: "Check the path.",
    errno.ENOTEMPTY: "It has come meanwhile: remove it, or name another path.",
    errno.EEXIST: "It is no folder, or a link to nothing: name another path.",
    errno.ENOTDIR: "A part of the path is a file: name another one.",
    errno.EISDIR: "It is a folder: name a file.",
    errno.ENAMETOOLONG: "Name a shorter path.",
    errno.ELOOP: "Its symbolic links form a circle: name another path.",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files: ulimit -n."),
}
OWN_NAME = re.compile(r"\.\w+-\d+-[0-9a-f]{8}\.(partial|replaced)\b")  # behind the name of what is being written
SYSTEM = re.compile(r"\(os error (\d+)\)")  # in the errors of libraries in Rust
SHORT = re.compile(r"inline_container|\d+ requested and \d+ written")  # torch.save and NumPy on a full disk
DAMAGE: tuple[type[Exception], ...] = (  # what Python and libraries raise for files that are not what they should be
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, NotImplementedError),
    *(RecursionError, MemoryError, SyntaxError, tokenize.TokenError, struct.error, UnpicklingError),
    *(zipfile.BadZipFile, zlib.error, SafetensorError),
)


class Explained(AbstractContextManager):
    """Raises exceptions that `explanation` knows as an `InputError`; an `InputError` stays as it is."""

    def explanation(self, error: Exception) -> str | None:
        """Message for users; None for an exception that is not about their input."""
        raise NotImplementedError

    def __exit__(self, kind, error, traceback) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError) and (text := self.explanation(error)):
            raise InputError(OWN_NAME.sub("", text)) from error


class reading(Explained):
    """Raises errors of reading `path` as an `InputError`.

    Args:
        path: a file or folder.
        kinds: what a library raises for a damaged file besides `DAMAGE` and, as tokenizers does, a bare `Exception`.
        advice: what to do about a damaged file.
    """

    def __init__(self, path: str | Path, *kinds: type[Exception], advice: str = "Copy it again, or make it again."):
        self.path, self.kinds, self.advice = path, kinds, advice

    def explanation(self, error: Exception) -> str | None:
        if type(error) is not Exception and not isinstance(error, (*DAMAGE, *self.kinds)):
            return None
        failed = system_error(error)
        advice = self.advice if failed is None else advice_for(failed)
        return f"{self.path} cannot be read ({in_short(failed or error, self.path)}). {advice}"


class writing(Explained):
    """Raises system errors of writing `path` as an `InputError`, also those wrapped by a library.

    Args:
        path: a file or folder.
        needed: bytes of the complete file.
        advice: what to do after the cause is removed.
    """

    def __init__(self, path: str | Path, needed: int | None = None, advice: str = ""):
        self.path, self.needed, self.advice = path, needed, advice

    def explanation(self, error: Exception) -> str | None:
        failed = system_error(error)
        if failed is None:
            return None
        folder, sizes = Path(self.path).absolute().parent, ""
        if failed.errno in FULL and folder.is_dir():
            wants = "" if self.needed is None else f"; it takes {self.needed / 2**20:.1f} MiB"
            sizes = f"{wants}; {shutil.disk_usage(folder).free / 2**20:.1f} MiB are free in {folder}"
        reason = f"{self.path} could not be written ({in_short(failed, self.path)}){sizes}"
        return f"{reason}. {advice_for(failed)} {self.advice}".rstrip()


class system_errors(Explained):
    """Raises an error of the system that names a file, or that a library has wrapped, as an `InputError`."""

    def explanation(self, error: Exception) -> str | None:
        failed = system_error(error)
        if failed is None or (failed.filename is None and (failed is error or failed.errno not in ADVICE)):
            return None
        return f"{in_short(failed)}. {advice_for(failed)}"


def system_error(error: BaseException | None) -> OSError | None:
    """The `OSError` behind an exception: itself, its cause, or named in its message; None if there is none."""
    while isinstance(error, Exception):
        if isinstance(error, OSError) and error.errno is not None:
            return error
        if told := SYSTEM.search(str(error)):
            return OSError(int(told[1]), os.strerror(int(told[1])))
        if SHORT.search(str(error)):
            return OSError(errno.ENOSPC, str(error).splitlines()[0])
        if str(error).startswith("Symlink loop from"):  # `Path.resolve`, below Python 3.13
            return OSError(errno.ELOOP, str(error))
        error = error.__cause__
    return None


def advice_for(error: OSError) -> str:
    return ADVICE.get(error.errno or 0, "Check the path and its disk.")


def in_short(error: Exception, path: str | Path = "") -> str:
    """An error on one line; one of the system without its number, and with its file unless that is `path`."""
    if isinstance(error, OSError) and error.strerror:
        named = error.filename and OWN_NAME.sub("", str(error.filename)) != OWN_NAME.sub("", str(path))
        return f"{error.strerror}: {error.filename}" if named else error.strerror
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
    earlier_hook, sys.unraisablehook = sys.unraisablehook, interrupt_again
    try:
        with system_errors():
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
    except OSError as error:  # of stdout, which has no name
        if error.errno not in FULL:
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
    """Whether the reader of stdout is gone; the broken pipe may be another, such as that of a worker."""
    stdout = select.poll()
    stdout.register(1, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))


def discard_stdout() -> None:
    """Discards the rest of stdout, which would fail again when flushed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
