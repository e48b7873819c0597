"""Documents escape what they are given; numbers and figures are those of the values."""

import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from cosent.reporting import figures
from cosent.reporting.document import (
    Figure,
    Figures,
    Number,
    Range,
    Section,
    Table,
    markdown_table,
    mean_of,
    printed,
    times_100,
    to_html,
    to_markdown,
)

ROWS = [["cosent", Number(65.0, 7.071), 2], ["<b>sbert|*", None, None]]
TABLE = Table("All & <more>", ["method", "lcqmc", "n"], ROWS, strong=frozenset({(0, 1)}))
NAMES = ["余弦排序", "<script>a & b</script>", "_private $x$", "a\x00b"]
DRAWN = {
    "dots": lambda: figures.dots("数据: t", [(name, [50.0, 60.0, 70.0]) for name in NAMES], "Spearman"),
    "intervals": lambda: figures.intervals("数据: t", [(name, 1.0, 0.5, 1.5) for name in NAMES], "Spearman"),
    "curves": lambda: figures.curves(
        "数据: t", [(name, [1.0, 2.0], [[3.0, 5.0], [6.0, 8.0]]) for name in NAMES], "epoch", "Spearman"
    ),
    "histograms": lambda: figures.histograms("数据: t", [(name, np.arange(9.0)) for name in NAMES], "score"),
    "strips": lambda: figures.strips(
        "数据: t", [(name, np.arange(9.0), np.arange(9.0) + 1) for name in NAMES], ("same", "changed"), "score"
    ),
}


def test_numbers_on_paper():
    """Fails if a table shows another mean or deviation than that of its runs: 0.6 and 0.7 give 65.00 ± 7.07."""
    assert printed(times_100([0.6, None, 0.7])) == "65.00 ± 7.07"
    assert printed(times_100([0.6])) == "60.00", "one run has no deviation"
    assert times_100([None]) is None and mean_of([], ".1f") is None
    cells = [None, 3, "text", Number(0.1234, form=".1%"), Range(-0.5, 1.25), mean_of([1.0, 2.0, None], ".1f")]
    assert [printed(cell) for cell in cells] == ["", "3", "text", "12.3%", "-0.50 to +1.25", "1.5"]


def test_a_markdown_table_on_paper():
    """Fails if a table breaks, shows None, or a name of the user's begins a column, a tag or emphasis."""
    assert markdown_table(TABLE.header, TABLE.rows, TABLE.strong).splitlines() == [
        "| method | lcqmc | n |",
        "|---|---|---|",
        "| cosent | **65.00 ± 7.07** | 2 |",
        r"| &lt;b&gt;sbert\|\* |  |  |",
    ]


def test_the_page_shows_the_same_numbers():
    """Fails if the page has other cells than the Markdown, aligns numbers as text, or a long table has no name."""
    folded = Table("Every run", ["run"], [["a"]], folded=True)
    page = to_html("Study <x>", [Section("A & B", [TABLE, "text <i>", folded])])
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", page)
    assert cells[:6] == ["method", "lcqmc", "n", "cosent", "<strong>65.00 ± 7.07</strong>", "2"]
    assert cells[6:9] == ["&lt;b&gt;sbert|*", "", ""]
    assert "<title>Study &lt;x&gt;</title>" in page and "A &amp; B" in page and "text &lt;i&gt;" in page
    assert "<more>" not in page and "<b>" not in page
    assert re.findall(r'<th scope="col"( class="text")?>(\w+)', page)[:2] == [
        (' class="text"', "method"),
        ("", "lcqmc"),
    ]
    assert page.count("<details>") == 1 and '<summary id="s1-3">Every run</summary>' in page
    assert re.findall(r'role="region" aria-labelledby="(.*?)"', page) == ["s1-1", "s1-3"]


def test_figures_are_on_the_page_only():
    """Fails if Markdown, which renderers strip of SVG, holds pages of it, or a figure has no words on the page."""
    sections = [Section("Dots", [Figures("A dot is a run", [Figure("<svg/>", 'a < "b"')])])]
    page, markdown = to_html("t", sections), to_markdown("t", sections, "report.html")
    assert 'src="data:image/svg+xml;base64,PHN2Zy8+" alt="a &lt; &#34;b&#34;"' in page
    assert "<figcaption>A dot is a run" in page and "svg" not in markdown and "Dots" not in markdown


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_its_values_in_words_too(name, monkeypatch):
    """Fails if a blind reader is told less than title, series and means, Chinese becomes boxes or paths, a name runs
    code or turns into mathematics, or a user's matplotlibrc changes reports."""
    figure = DRAWN[name]()
    texts = [element.text for element in ElementTree.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")]
    shown = {text.strip("\u200b") for text in texts}
    assert {"数据: t", "余弦排序", "<script>a & b</script>", "_private $x$", "ab"} <= shown
    assert "DejaVu" not in figure.svg and "Noto Sans CJK SC" in figure.svg
    assert figure.description.startswith("数据: t. ") and "余弦排序" in figure.description
    means = {
        "dots": "60.00",
        "intervals": "+1.00, from +0.50 to +1.50",
        "curves": "from 4.00 to 7.00",
        "strips": "4.00 and 5.00",
    }
    assert means.get(name, "4.000") in figure.description
    monkeypatch.setitem(matplotlib.rcParams, "axes.edgecolor", "red")
    assert DRAWN[name]() == figure


def test_an_interval_that_includes_0_is_hollow():
    """Fails if a difference that is not significant looks like one that is."""
    hollow = figures.intervals("t", [("a - b", 0.1, -0.5, 0.7)], "Spearman").svg
    filled = figures.intervals("t", [("a - b", 0.1, 0.05, 0.7)], "Spearman").svg
    assert figures.COLORS[0] in filled and figures.COLORS[0] not in hollow


def test_what_has_no_width_is_drawn():
    """Fails if a collapsed encoder, whose scores are all one value, or a study of one epoch stops the report."""
    groups = [("dissimilar", np.full(5, 0.99)), ("similar", np.array([]))]
    assert "5 dissimilar, 0 similar" in figures.histograms("t", groups, "score").description
    assert "from 40.00 to 40.00" in figures.curves("t", [("a", [1.0], [[30.0, 50.0]])], "epoch", "x").description
