"""Cells of tables: numbers with the format to print them in."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A number, with a standard deviation where it is a mean over runs."""

    value: float
    deviation: float | None = None
    form: str = ".2f"

    def __str__(self) -> str:
        value = format(self.value, self.form)
        return value if self.deviation is None else f"{value} ± {format(self.deviation, self.form)}"


@dataclass(frozen=True)
class Range:
    """The two ends of an interval."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:+.2f} to {self.high:+.2f}"


# None is an empty cell; integers are counts.
Cell = str | int | Number | Range | None
Row = Sequence[Cell]


def printed(cell: Cell) -> str:
    return "" if cell is None else str(cell)


def setting(value: Any) -> Cell:
    """The value of a flag as a cell."""
    if isinstance(value, float):
        return Number(value, form="g")
    return value if value is None or type(value) is int else str(value)


def measured(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def times_100(values: Iterable[float | None]) -> Number | None:
    """Mean over runs and, if there are several, standard deviation, both times 100; None if nothing was measured."""
    numbers = [100 * value for value in measured(values)]
    return with_deviation(numbers) if numbers else None


def with_deviation(numbers: Sequence[float], form: str = ".2f") -> Number:
    """Mean over runs and, if there are several, standard deviation."""
    return Number(statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None, form)


def mean_of_corpora(cells: list[list[float | None]]) -> Number | None:
    """Mean over corpora of the mean over runs, times 100; None unless there are several, all of them measured."""
    means = [statistics.mean(measured(cell)) for cell in cells if measured(cell)]
    return Number(100 * statistics.mean(means)) if len(means) == len(cells) > 1 else None


def mean_of(values: Iterable[float | None], form: str) -> Number | None:
    """Mean over runs; None if nothing was measured."""
    numbers = measured(values)
    return Number(statistics.mean(numbers), form=form) if numbers else None
