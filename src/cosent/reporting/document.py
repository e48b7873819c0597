"""A report as a document: sections of text, tables and figures, rendered to Markdown and to one HTML page.

Everything that is text is escaped in both; figures are SVG made by `figures.py`, which escapes its own.
"""

import re
from dataclasses import dataclass, field
from html import escape


class Strong(str):
    """Text of a table cell that stands out."""


@dataclass(frozen=True)
class Table:
    """A table; the first column of `rows` names the row."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    folded: bool = False  # long: opened by a click in HTML


@dataclass(frozen=True)
class Figures:
    """SVG figures side by side under one caption. The page alone has them."""

    caption: str
    svgs: list[str]


@dataclass(frozen=True)
class Section:
    title: str
    blocks: list[str | Table | Figures] = field(default_factory=list)


def to_markdown(title: str, sections: list[Section], page: str) -> str:
    """Markdown of a report; `page` is the file name of the HTML page, which alone holds the figures."""
    lines = [f"# {_plain(title)}", "", f"Figures: [{page}]({page}).", ""]
    for section in sections:
        if not any(isinstance(block, str | Table) for block in section.blocks):
            continue
        lines += [f"## {_plain(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Table):
                lines += [markdown_table(block), ""]
            elif isinstance(block, str):
                lines += [_plain(block), ""]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    """Caption and table."""
    rows = [[f"**{_plain(cell)}**" if isinstance(cell, Strong) else _plain(cell) for cell in row] for row in table.rows]
    lines = [[_plain(cell) for cell in table.header], ["---"] * len(table.header), *rows]
    return "\n".join([_plain(table.caption), "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: no tag, no column, no emphasis begins in it."""
    return re.sub(r"([\\|*`\[\]])", r"\\\1", escape(" ".join(str(text).split()), quote=False))


def to_html(title: str, sections: list[Section]) -> str:
    """One HTML page without external resources or scripts."""
    links = "".join(f'<li><a href="#s{i}">{escape(section.title)}</a></li>' for i, section in enumerate(sections))
    body = "".join(
        f'<section aria-labelledby="s{i}"><h2 id="s{i}">{escape(section.title)}</h2>'
        f"{''.join(map(_html_block, section.blocks))}</section>\n"
        for i, section in enumerate(sections)
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<header><h1>{escape(title)}</h1>\n"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n<main>\n{body}</main>\n</body>\n</html>\n'
    )


def _html_block(block: str | Table | Figures) -> str:
    if isinstance(block, Figures):
        figures = "".join(f"<div>{svg}</div>" for svg in block.svgs)
        return f'<figure><div class="figures">{figures}</div><figcaption>{escape(block.caption)}</figcaption></figure>'
    if not isinstance(block, Table):
        return f"<p>{escape(block)}</p>"
    words = [any(re.search(r"[^\W\d]{3}", row[i]) for row in block.rows) for i in range(len(block.header))]
    kinds = [' class="words"' if column else "" for column in words]  # numbers are aligned on the right
    head = "".join(f'<th scope="col"{kind}>{escape(cell)}</th>' for cell, kind in zip(block.header, kinds, strict=True))
    rows = "".join(
        f'<tr><th scope="row">{_html_cell(row[0])}</th>'
        + "".join(f"<td{kind}>{_html_cell(cell)}</td>" for cell, kind in zip(row[1:], kinds[1:], strict=True))
        + "</tr>"
        for row in block.rows
    )
    # Wide tables scroll inside their own box, which the keyboard must reach.
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(block.caption)}"><table>'
        f"<caption>{escape(block.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    return f"<details><summary>{escape(block.caption)}</summary>{table}</details>" if block.folded else table


def _html_cell(cell: str) -> str:
    return f"<strong>{escape(cell)}</strong>" if isinstance(cell, Strong) else escape(str(cell))


STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: #fff; color: #1c1f23;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .75rem; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 .5rem; padding-top: .75rem; border-top: 1px solid #d8dce1; }
p { max-width: 46rem; margin: .6rem 0; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; list-style: none; margin: 0; padding: 0; }
a { color: #0b5394; } a:focus-visible, .scroll:focus-visible, summary:focus-visible { outline: 3px solid #0072b2; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { min-width: 34rem; border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: #454c54; padding-bottom: .35rem; max-width: 46rem; }
th, td { padding: .32rem .8rem .32rem 0; text-align: right; border-bottom: 1px solid #e6e9ec; white-space: nowrap; }
thead th { border-bottom: 2px solid #8a929b; vertical-align: bottom; }
th:first-child { text-align: left; font-weight: 500; padding-right: 1.4rem; }
th.words, td.words { text-align: left; padding-left: .8rem; } th.words:first-child { padding-left: 0; }
tbody tr:hover { background: #f5f8fb; }
figure { margin: 1.2rem 0; } figcaption { color: #454c54; font-size: .92rem; max-width: 46rem; }
.figures { display: flex; flex-wrap: wrap; gap: .75rem 1.25rem; }
.figures > div { flex: 0 1 auto; max-width: 100%; } svg { max-width: 100%; height: auto; display: block; }
summary { cursor: pointer; color: #0b5394; margin: .6rem 0; }
@media print { details { display: none; } nav { display: none; } }
"""
