"""Markdown tables and numbers of reports; foreign text is escaped."""

import re
import statistics
from collections.abc import Iterable, Sequence
from html import escape

Cell = str | int | None  # None is an empty cell


def measured(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def times_100(values: Iterable[float | None]) -> str | None:
    """Mean over runs and, if there are several, standard deviation, both times 100; None if nothing was measured."""
    numbers = [100 * value for value in measured(values)]
    deviation = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{deviation}" if numbers else None


def mean_of(values: Iterable[float | None], form: str) -> str | None:
    """Mean over runs; None if nothing was measured."""
    numbers = measured(values)
    return format(statistics.mean(numbers), form) if numbers else None


def plain(text: str) -> str:
    """Escapes text for Markdown: no tag, column or emphasis begins in it."""
    return re.sub(r"([\\|*`\[\]])", r"\\\1", escape(" ".join(text.split()), quote=False))


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[Cell]], strong: Iterable[tuple[int, int]] = ()
) -> str:
    """A Markdown table; `strong` names the (row, column) of the cells in bold."""
    cells = [["" if cell is None else plain(str(cell)) for cell in row] for row in rows]
    for row, column in strong:
        cells[row][column] = f"**{cells[row][column]}**"
    lines = [f"| {' | '.join(row)} |" for row in ([plain(name) for name in header], *cells)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])
