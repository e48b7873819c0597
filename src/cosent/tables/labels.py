"""Labels of rows that people have: a column of numbers."""

import math
from pathlib import Path

from cosent.errors import InputError


def label_of(row: dict, column: str, path: Path, number: int) -> float:
    """The known score or label of a row.

    Args:
        number: of the row, from 1, for the message.

    Raises:
        InputError: it is not a number.
    """
    try:
        label = float(row.get(column))  # type: ignore[arg-type]  # what it does not take is caught
    except (TypeError, ValueError):
        label = math.nan
    if not math.isfinite(label):
        raise InputError(
            f"{path}, pair {number}: expected a number in {column}, got {row.get(column)!r}. Without it, the model "
            "would be compared with other pairs. Fill it, or name another --label_column."
        )
    return label
