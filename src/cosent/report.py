"""Report of a study: tables, intervals and figures from the results of its runs.

cosent report results/NAME                report.md and report.html, next to the results
cosent report --ensemble RUN RUN ...      the mean of the ranks of runs, tested against each, and without each
"""

from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from cosent.cli import option, run
from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS


@dataclass
class ReportArguments:
    """Results to report."""

    folder: str | None = option(None, "Folder of results.", positional=True)
    ensemble: list[str] | None = option(None, "Folders of trained models of either tower, or results; two or more.")
    metric: str = option("recall_at_10", "Retrieval metric whose differences the report shows.", METRICS)


def main(args: ReportArguments) -> None:
    from cosent.reporting.ensemble import ensemble

    if (args.folder is None) == (args.ensemble is None):
        raise InputError("Give a folder of results, or --ensemble with two runs or more.")
    if args.ensemble is not None:
        print(ensemble(args.ensemble))
    else:
        for file in write(Path(args.folder), args.metric):
            print(file)


def write(folder: Path, metric: str = "recall_at_10") -> tuple[Path, Path]:
    """Writes `report.md` and `report.html` into a folder of results.

    Args:
        metric: the retrieval metric to compare methods by.

    Raises:
        InputError: no results there, or a library that the page needs is not installed.
    """
    from cosent.reporting import comparison, diagnostics, document
    from cosent.reporting.differences import differences
    from cosent.reporting.probabilities import probabilities
    from cosent.reporting.retrieval import retrieval
    from cosent.studies.results import read_results

    study = read_results(folder)
    check_installed("jinja2", "matplotlib")
    found = partial(retrieval, metric=metric)
    make = (comparison.overview, comparison.tuning, comparison.quality, differences, found, comparison.accuracy)
    make += (probabilities, diagnostics.learning, diagnostics.distributions, diagnostics.distances, diagnostics.speed)
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
            f"A report needs {' and '.join(libraries)}, but {' and '.join(missing)} cannot be imported here. Nothing "
            "was written. Install them: pip install -e '.[report]'."
        )


ARGUMENTS = (ReportArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
