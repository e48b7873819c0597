"""The job `report`: both files of a study, from the results of its runs."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from cosent import report
from cosent.errors import InputError


class Page(HTMLParser):
    """Tags that are open at the end, all tags, ids, and what is linked or loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in ("meta", "path", "circle", "polygon", "polyline"):
            self.open.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_alone(make_study):
    """Fails if the page loads anything, runs a script, repeats an id, or a figure says nothing to a screen reader."""
    text = report.write(make_study({"cosent": 0.8, "sbert": 2.0}, corpora=("lcqmc", "atec")))[1].read_text()
    page = Page()
    page.feed(text)
    assert not page.open and len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags and page.links and {link.lstrip("#") for link in page.links} <= set(page.ids)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    figures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    # Dots, intervals, curves, two histograms per method and one of distances: for either corpus.
    assert len(figures) == 2 * (1 + 1 + 1 + 2 * 2 + 1)
    assert all('role="img"' in figure and "<desc" in figure and "nan" not in figure for figure in figures)


def test_a_users_text_stays_text(make_study):
    """Fails if the name of a method, a corpus or a device can run code in the page, or break a Markdown table."""
    folder = make_study({"<script>alert(1)</script>": 1.0, "a|b *c*": 1.0}, name="study", corpora=("<b>x",))
    markdown, html = (file.read_text() for file in report.write(folder))
    assert "<script>" not in html and "<b>" not in html and "&lt;script&gt;alert(1)" in html
    assert "<script>" not in markdown and "<b>" not in markdown and r"a\|b \*c\*" in markdown


def test_the_same_results_give_the_same_files(make_study):
    """Fails if two reports of one study cannot be compared by their bytes."""
    folder = make_study({"cosent": 0.8, "sbert": 2.0})
    first = [file.read_bytes() for file in report.write(folder)]
    assert [file.read_bytes() for file in report.write(folder)] == first


def test_what_is_no_result_is_named(tmp_path):
    """Fails if a stray or torn file ends in a traceback, or an empty folder in an empty report."""
    with pytest.raises(InputError, match="holds no results"):
        report.write(tmp_path)
    (tmp_path / "torn.json").write_text('{"recipe": ')
    with pytest.raises(InputError, match="torn.json is not the result of a run"):
        report.write(tmp_path)


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_a_missing_library_is_named_before_work_begins(make_study, monkeypatch, library):
    """Fails if a user without the extra gets a traceback, or half a report after minutes of resampling."""
    folder = make_study({"cosent": 1.0})
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"{library} cannot be imported.*\[report\]"):
        report.write(folder)
    assert not list(folder.glob("report.*"))


def test_report_answers_at_once():
    """Fails if a table of numbers first loads torch, or `report --help` what draws figures."""
    heavy = ("torch", "datasets", "matplotlib", "jinja2", "scipy.stats")
    code = f"import sys, cosent.report; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
