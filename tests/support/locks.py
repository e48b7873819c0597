"""A lock that another thread holds, as another process would."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from cosent.atomic import locked


@contextmanager
def locked_elsewhere(output: Path) -> Iterator[None]:
    """The lock of an output, which this thread cannot take until the block has ended."""
    held, end = Event(), Event()

    def hold() -> None:
        with locked(output):
            held.set()
            end.wait(60)

    thread = Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        yield
    finally:
        end.set()
        thread.join()
