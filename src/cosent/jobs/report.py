"""Report a study: tables, intervals and figures from the results of its runs.

cosent report results/NAME                report.md, report.html and their figures, next to the results
"""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cosent.atomic import writable_folder, write_atomically
from cosent.cli import REQUIRED, option
from cosent.errors import InputError, writing


@dataclass
class ReportArguments:
    """Results to report."""

    folder: str = option(REQUIRED, "Folder of results.", positional=True)


def main(args: ReportArguments) -> None:
    print(write(Path(args.folder)))


def write(folder: Path) -> Path:
    """Writes `report.md` and `report.html` into a folder of results, and their figures to `report/`."""
    from cosent.comparing import sections
    from cosent.comparing.document import plain, to_html
    from cosent.comparing.results import read_results

    study, figures = read_results(folder), folder / "report"
    if find_spec("matplotlib") is None:
        raise InputError("A report needs matplotlib. Install: pip install -e '.[report]'.")
    with writing(figures):
        place = writable_folder(figures)
        shutil.rmtree(place)
        place.mkdir()
        written = [one(study, figures) for one in sections.SECTIONS]
    text = "\n\n".join([f"# Study {plain(study.name)}", *filter(None, written)])
    write_atomically(folder / "report.md", text + "\n")
    write_atomically(folder / "report.html", to_html(f"Study {study.name}", text))
    return folder / "report.md"
