"""Document of sections with text, tables and figures, rendered to Markdown and to one HTML page.

All text is escaped in both. The page is styled by `report.html.j2` and `report.css`; the figures are SVG from
`figures.py`, which escapes its own text.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from cosent.reporting.numbers import Row, printed

TEMPLATE = "report.html.j2"


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
class Figures:
    """SVG figures next to one another under one caption; omitted from Markdown."""

    caption: str
    svgs: list[str]


Block = str | Table | Figures


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block] = ()


def to_html(title: str, sections: list[Section]) -> str:
    """One HTML page without scripts or external resources."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["printed"] = printed
    environment.tests |= {"table": lambda block: isinstance(block, Table)}
    environment.tests |= {"figures": lambda block: isinstance(block, Figures)}
    return environment.get_template(TEMPLATE).render(title=title, sections=sections)


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
