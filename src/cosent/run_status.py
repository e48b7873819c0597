"""Progress and failure of a run, reported to its launcher through files rather than log lines.

The launcher names a folder in the environment; without it, a run writes nothing.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from cosent.errors import InputError
from cosent.files import write_atomically

STATUS_VARIABLE = "COSENT_STATUS_DIR"  # environment variable with the folder for the files
PROGRESS_NAME = "progress.json"
FAILURE_NAME = "failure.json"


@dataclass(frozen=True)
class TrainingProgress:
    """Optimizer steps so far and in total."""

    step: int
    steps: int

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.steps) if self.steps else 0.0


@dataclass(frozen=True)
class Failure:
    """The exception that ended a run."""

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message if self.kind == InputError.__name__ else f"{self.kind}: {self.message}"


def clear_status(folder: Path) -> None:
    """Removes the files of an earlier run."""
    for name in (PROGRESS_NAME, FAILURE_NAME):
        (folder / name).unlink(missing_ok=True)


def tell_progress(progress: TrainingProgress) -> None:
    write_atomically(Path(os.environ[STATUS_VARIABLE], PROGRESS_NAME), json.dumps(asdict(progress)))


def read_progress(folder: Path) -> TrainingProgress | None:
    """Progress of the run; None before its first step."""
    try:
        return TrainingProgress(**json.loads((folder / PROGRESS_NAME).read_text(encoding="utf-8")))
    except OSError:  # not there yet, or on Windows replaced at this moment
        return None


@contextmanager
def failures_told() -> Iterator[None]:
    """Reports the exception that ends the block to the launcher; of several processes, only the first to fail."""
    try:
        yield
    except Exception as error:
        folder = os.environ.get(STATUS_VARIABLE)
        if folder is not None and not Path(folder, FAILURE_NAME).exists():
            failure = Failure(type(error).__name__, str(error))
            write_atomically(Path(folder, FAILURE_NAME), json.dumps(asdict(failure), ensure_ascii=False))
        raise


def read_failure(folder: Path) -> Failure | None:
    """The failure of the run; None if it had no time to report one."""
    file = folder / FAILURE_NAME
    return Failure(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
