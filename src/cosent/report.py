"""Report of a study: tables, intervals and figures from the results of its runs.

python -m cosent.report results/NAME                  report.md and report.html, next to the results
python -m cosent.report --ensemble RUN_A RUN_B        the mean of ranks of two runs, tested against each of them
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from cosent.cli import check_world_size
from cosent.errors import InputError, messages_for_users
from cosent.reporting import comparison, diagnostics, document
from cosent.reporting.differences import differences
from cosent.reporting.ensemble import ensemble
from cosent.studies.results import read_results


def main(args: argparse.Namespace) -> None:
    check_world_size()
    if args.ensemble:
        print(ensemble(*args.ensemble))
    else:
        for file in write(Path(args.folder)):
            print(file)


def write(folder: Path) -> tuple[Path, Path]:
    """Writes `report.md` and `report.html` into a folder of results.

    Raises:
        InputError: no results there, or a library that draws the page is not installed.
    """
    study = read_results(folder)
    check_installed("jinja2", "matplotlib")
    make = (comparison.overview, comparison.quality, differences, comparison.accuracy)
    make += (diagnostics.learning, diagnostics.distributions, diagnostics.distances, diagnostics.speed)
    sections = [section for section in (function(study) for function in make) if section.blocks]
    title = f"Study {study.name}"
    markdown, html = folder / "report.md", folder / "report.html"
    markdown.write_text(document.to_markdown(title, sections, html.name), encoding="utf-8")
    html.write_text(document.to_html(title, sections), encoding="utf-8")
    return markdown, html


def check_installed(*libraries: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise InputError(
            f"A report needs {' and '.join(libraries)}, and {' and '.join(missing)} cannot be imported here. Nothing "
            "was written. Install them: pip install 'cosent[report]'."
        )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("folder", nargs="?", help="folder of results")
    wanted.add_argument("--ensemble", nargs=2, metavar=("A", "B"), help="folders of two trained models, or results")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
