"""Pages escape what they are given, hold their figures, and show what they are told."""

import re
from xml.etree import ElementTree

import numpy as np

from cosent.reporting import figures
from cosent.reporting.document import folded, inline_image, markdown_table, plain, section, to_html

NAME = '<script>alert("x")</script> | *b* [a](b) `c`'


def test_a_page_escapes_foreign_text():
    """Fails if a name in a table, a title or a summary becomes markup of the page."""
    table = markdown_table(["name", "n"], [[NAME, 2], ["相似", None]], strong=[(1, 0)])
    page = to_html(NAME, section(plain(NAME), table, folded(NAME, table)))
    assert "<script>" not in page and page.count("&lt;script&gt;") == 5
    assert page.count("<table>") == page.count("</table></div>") == 2 and "<strong>相似</strong>" in page
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells[1::2] == ["2", "", "2", ""] and "| *b* [a](b) `c`" in cells[0]
    assert "<a " not in page and "<em>" not in page and "http" not in page


def test_a_page_holds_its_figures():
    """Fails if a figure is lost on its way into the page, is no XML, or a strip has no second side or its own axis."""
    rows = [(f"<row {i}> $x$", np.linspace(0, 1, 200) + i, np.linspace(-1, 0, 3)) for i in range(2)]
    svg = figures.strips("_title", rows, ("reworded", "changed"), "cosine", (-80.0, 80.0))
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert all(word in texts for word in ("title", "<row 1> $x$", "reworded", "changed", "cosine", "-60"))
    page = to_html("t", inline_image("A *figure*", svg))
    assert re.search(r'<img src="data:image/svg\+xml;base64,[\w+/=]+" alt="A \*figure\*"', page)
