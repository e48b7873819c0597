"""Documents escape what they are given, and their page is whole without anything else."""

import re

from cosent.reporting.document import Figures, Section, Table, markdown_table, to_html, to_markdown
from cosent.reporting.numbers import Number

ROWS = [["cosent", Number(65.0, 7.071), 2], ["<b>sbert|*", None, None]]
TABLE = Table("All & <more>", ["method", "lcqmc", "n"], ROWS, strong=frozenset({(0, 1)}))


def test_a_markdown_table_on_paper():
    """Fails if a table breaks, shows None, or a name of the user's begins a column, a tag or emphasis."""
    assert markdown_table(TABLE.header, TABLE.rows, TABLE.strong).splitlines() == [
        "| method | lcqmc | n |",
        "|---|---|---|",
        "| cosent | **65.00 ± 7.07** | 2 |",
        r"| &lt;b&gt;sbert\|\* |  |  |",
    ]


def test_the_page_shows_the_same_numbers():
    """Fails if the page has other cells than the Markdown, or what is best is not marked in both."""
    page = to_html("Study <x>", [Section("A & B", [TABLE, "text <i>"])])
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", page)
    assert cells[:6] == ["method", "lcqmc", "n", "cosent", "<strong>65.00 ± 7.07</strong>", "2"]
    assert cells[6:] == ["&lt;b&gt;sbert|*", "", ""]
    assert "<title>Study &lt;x&gt;</title>" in page and "A &amp; B" in page and "text &lt;i&gt;" in page
    assert "All &amp; &lt;more&gt;" in page and "<more>" not in page and "<b>" not in page


def test_text_is_aligned_left_and_numbers_right():
    """Fails if numbers of a column cannot be compared by eye, because some begin where others end."""
    rows = [["a", Number(1.0), "better", None], ["b", None, "", 3]]
    page = to_html("t", [Section("s", [Table("c", ["method", "mean", "verdict", "n"], rows)])])
    assert re.findall(r'<th scope="col"( class="text")?>(\w+)', page) == [
        (' class="text"', "method"),
        ("", "mean"),
        (' class="text"', "verdict"),
        ("", "n"),
    ]


def test_a_long_table_is_folded_and_has_a_name():
    """Fails if a long table pushes the page apart, or a screen reader cannot tell what the scrolling box is."""
    folded = Table("Every run", ["run"], [["a"]], folded=True)
    page = to_html("t", [Section("s", [TABLE, folded])])
    assert page.count("<details>") == 1 and '<summary id="s1-2">Every run</summary>' in page
    assert re.findall(r'role="region" aria-labelledby="(.*?)"', page) == ["s1-1", "s1-2"]
    assert 'id="s1-1">All' in page


def test_figures_are_on_the_page_only():
    """Fails if Markdown, which renderers strip of SVG, holds pages of it, or the page escapes a figure."""
    sections = [Section("Dots", [Figures("A dot is a run", ["<svg><title>a &lt; b</title></svg>"])])]
    page, markdown = to_html("t", sections), to_markdown("t", sections, "report.html")
    assert "<div><svg><title>a &lt; b</title></svg></div>" in page and "<figcaption>A dot is a run" in page
    assert "svg" not in markdown and "Dots" not in markdown and "[report.html](report.html)" in markdown
