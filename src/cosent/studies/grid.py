"""Points of the grid of a study, and what was found there on validation."""

from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

TUNING = "tuning"  # folder next to the results, with a folder of results per point

Flags = dict[str, Any]


def points(tune: dict[str, list]) -> dict[str, Flags]:
    """Every combination of the values of the tuned flags, by the name of its folder; empty without such flags."""
    combined = [dict(zip(tune, values, strict=True)) for values in product(*tune.values())] if tune else []
    return {name_of(flags): flags for flags in combined}


def name_of(flags: Flags) -> str:
    """Flags as the name of a folder: `learning_rate=0.0005`."""
    return "-".join(f"{key}={file_name(value)}" for key, value in flags.items())


def file_name(value: Any) -> str:
    """A value of a flag as part of a folder's name: `mini` for `runs/mini`, `a+b` for a list."""
    return "+".join(Path(str(part)).name for part in (value if isinstance(value, list) else [value]))


@dataclass
class Tried:
    """Best validation Spearman of a method on a corpus by point of the grid; None where it is undefined."""

    validation: dict[str, float | None] = field(default_factory=dict)

    @property
    def chosen(self) -> str:
        """The point that is best on validation, of equal ones the first."""
        reached = {point: float("-inf") if value is None else value for point, value in self.validation.items()}
        return max(reached, key=lambda point: reached[point])
