"""Report pages of runs, shown in a frame where no script runs."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from cosent.errors import InputError

REPORT = "report.html"
LARGEST = 32 * 2**20  # bytes of a page
# Links within a page belong to the frame; without this they would lead to the address of the page around it.
BASE = '<base href="about:srcdoc">'


def report_pages(paths: Sequence[str]) -> dict[str, Path]:
    """The HTML pages by the names that are shown.

    Raises:
        InputError: a folder without `report.html`, another file, or one that is too large for a browser.
    """
    found = {}
    for given in paths:
        page = Path(given, REPORT) if Path(given).is_dir() else Path(given)
        if not page.is_file() or page.suffix != ".html":
            raise InputError(
                f"--runs {given}: expected a folder with {REPORT} or an HTML page, and {page} is none. Its results "
                f"would be missing. Write it first: cosent report {given}."
            )
        if page.stat().st_size > LARGEST:
            raise InputError(f"--runs {given}: {page} has more than {LARGEST >> 20} MiB. Open it in a browser instead.")
        found[given] = page
    return found


def frame(page: Path) -> str:
    """A page in a sandbox: no scripts, no forms, no way to the page around it."""
    content = escape(page.read_text(encoding="utf-8", errors="replace").replace("<head>", f"<head>{BASE}", 1))
    return f'<iframe class="report" sandbox title="{escape(page.parent.name)}" srcdoc="{content}"></iframe>'
