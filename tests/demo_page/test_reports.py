"""Reports of runs on the page: found before models are loaded, and shown where nothing of them can run."""

import re

import pytest

from cosent.demo_page.reports import frame, report_pages
from cosent.errors import InputError

PAGE = '<!doctype html><html><head><title>x</title></head><body><p class="a">好 & gut</p></body></html>'


def test_pages_are_found(tmp_path):
    """Fails if a folder of results, or a page itself, is not shown under the name that was given."""
    (tmp_path / "report.html").write_text(PAGE, encoding="utf-8")
    for given in (str(tmp_path), str(tmp_path / "report.html")):
        assert report_pages([given]) == {given: tmp_path / "report.html"}


def test_a_folder_without_a_report_is_refused(tmp_path):
    """Fails if a forgotten `cosent report` is noticed only when somebody opens the tab."""
    (tmp_path / "notes.txt").write_text("x")
    for given in (str(tmp_path), str(tmp_path / "notes.txt"), str(tmp_path / "nowhere")):
        with pytest.raises(InputError, match="cosent report"):
            report_pages([given])


def test_a_page_cannot_leave_its_frame(tmp_path):
    """Fails if a report can run a script, or its markup ends the frame; its own links must stay inside."""
    (tmp_path / "report.html").write_text(PAGE, encoding="utf-8")
    shown = frame(tmp_path / "report.html")
    (attributes,) = re.findall(r"^<iframe ([^>]*)></iframe>$", shown)
    assert " sandbox " in attributes and "allow" not in attributes
    assert "&lt;head&gt;&lt;base href=&quot;about:srcdoc&quot;&gt;" in attributes and "好 &amp; gut" in attributes
