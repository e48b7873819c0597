"""Tables, figures and intervals out of results, so that no number is typed by hand.

python -m cosent.report results/native        report.md and report.html of a study, beside its results
python -m cosent.report README.md                     fills the blocks of a Markdown file
python -m cosent.report --ensemble RUN_A RUN_B        the mean of ranks of two runs, tested against each of them
"""

import argparse
from pathlib import Path

from cosent.cli import check_world_size
from cosent.errors import InputError, messages_for_users
from cosent.reporting import comparison, diagnostics, document
from cosent.reporting.ensemble import ensemble
from cosent.reporting.readme_tables import fill
from cosent.studies.results import read_results


def main(args: argparse.Namespace) -> None:
    check_world_size()
    if args.ensemble:
        print(ensemble(*args.ensemble))
    elif Path(args.path).is_dir():
        for file in write(Path(args.path)):
            print(file)
    elif Path(args.path).is_file():
        readme = Path(args.path)
        readme.write_text(fill(readme.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        raise InputError(f"There is no {args.path}: pass a folder of results, or a Markdown file with blocks to fill.")


def write(folder: Path) -> tuple[Path, Path]:
    """Writes `report.md` and `report.html` into a folder of results."""
    study = read_results(folder)
    make = (comparison.overview, comparison.quality, comparison.differences, comparison.accuracy)
    make += (diagnostics.learning, diagnostics.distributions, diagnostics.distances, diagnostics.speed)
    sections = [section for section in (function(study) for function in make) if section.blocks]
    title = f"Study {study.name}"
    markdown, html = folder / "report.md", folder / "report.html"
    markdown.write_text(document.to_markdown(title, sections, html.name), encoding="utf-8")
    html.write_text(document.to_html(title, sections), encoding="utf-8")
    return markdown, html


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("path", nargs="?", help="folder of results, or Markdown file with blocks")
    wanted.add_argument("--ensemble", nargs=2, metavar=("A", "B"), help="folders of two trained models, or results")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
