"""Document of sections with text, tables and figures, rendered to Markdown and to one HTML page.

All text is escaped in both. The page is laid out by `report.html.j2` and styled by `report.css`.
"""

import base64
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


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


def measured(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def times_100(values: Iterable[float | None]) -> Number | None:
    """Mean over runs and, if there are several, standard deviation, both times 100; None if nothing was measured."""
    numbers = [100 * value for value in measured(values)]
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else None
    return Number(statistics.mean(numbers), deviation) if numbers else None


def mean_of(values: Iterable[float | None], form: str) -> Number | None:
    """Mean over runs; None if nothing was measured."""
    numbers = measured(values)
    return Number(statistics.mean(numbers), form=form) if numbers else None


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names it.

    Args:
        strong: (row, column) of the cells in bold, both counted from 0.
        folded: whether the HTML page shows the table collapsed, to be opened with a click.
    """

    caption: str
    header: list[str]
    rows: Sequence[Row]
    strong: frozenset[tuple[int, int]] = frozenset()
    folded: bool = False

    def is_text(self, column: int) -> bool:
        """Whether a column has text, aligned on the left, and not only numbers, aligned on the right."""
        return any(isinstance(row[column], str) for row in self.rows)


@dataclass(frozen=True)
class Figure:
    """An SVG image and what it shows, for readers who do not see it."""

    svg: str
    description: str

    @property
    def source(self) -> str:
        """Address of the image with its content, so that identifiers of two images on a page never clash."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.svg.encode()).decode()}"


@dataclass(frozen=True)
class Figures:
    """Figures next to one another under one caption; omitted from Markdown."""

    caption: str
    figures: list[Figure]


Block = str | Table | Figures


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block] = ()


def templates(autoescape: bool) -> "Environment":
    """The Jinja templates of this folder; a name that a template is not given is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def to_html(title: str, sections: list[Section]) -> str:
    """One HTML page without scripts or external resources."""
    environment = templates(autoescape=True)
    environment.filters["printed"] = printed
    environment.tests |= {"table": lambda block: isinstance(block, Table)}
    environment.tests |= {"figures": lambda block: isinstance(block, Figures)}
    return environment.get_template("report.html.j2").render(title=title, sections=sections)


def to_markdown(title: str, sections: list[Section], page: str) -> str:
    """Markdown of a report; `page` is the file name of the HTML page, which has the figures too."""
    lines = [f"# {_plain(title)}", "", f"Figures: [{page}]({page}).", ""]
    for section in sections:
        if not any(isinstance(block, str | Table) for block in section.blocks):
            continue
        lines += [f"## {_plain(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Table):
                lines += [_plain(block.caption), "", markdown_table(block.header, block.rows, block.strong), ""]
            elif isinstance(block, str):
                lines += [_plain(block), ""]
    return "\n".join(lines)


def markdown_table(header: list[str], rows: Sequence[Row], strong: Iterable[tuple[int, int]] = ()) -> str:
    """A Markdown table; `strong` names the (row, column) of the cells in bold."""
    printed_rows = [[_plain(printed(cell)) for cell in row] for row in rows]
    for row, column in strong:
        printed_rows[row][column] = f"**{printed_rows[row][column]}**"
    lines = [f"| {' | '.join(cells)} |" for cells in ([_plain(name) for name in header], *printed_rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def _plain(text: str) -> str:
    """Escapes text for Markdown: no tag, column or emphasis begins in it."""
    return re.sub(r"([\\|*`\[\]])", r"\\\1", escape(" ".join(text.split()), quote=False))
