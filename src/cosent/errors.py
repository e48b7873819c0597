"""`InputError`, the error for users, and how a job ends with one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something the user gave is wrong, and the message says what to do: jobs print it without a traceback."""


@contextmanager
def messages_for_users() -> Iterator[None]:
    """Ends a job with one line on stderr: exit status 2 where the user's input is wrong, 130 after Ctrl-C."""
    try:
        yield
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
