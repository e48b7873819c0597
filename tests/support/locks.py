"""A lock that another job holds."""

from pathlib import Path

from filelock import FileLock


def locked_elsewhere(output: Path) -> FileLock:
    """The lock of an output, of which the functions of `cosent.atomic` know nothing."""
    return FileLock(output.with_name(f".{output.name}.lock"))
