"""Report of a study: tables, intervals and figures from the results of its runs.

cosent report results/NAME                report.md and report.html, next to the results
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cosent.cli import REQUIRED, option, run
from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS


@dataclass
class ReportArguments:
    """Results to report."""

    folder: str = option(REQUIRED, "Folder of results.", positional=True)
    metric: str = option("recall_at_10", "Retrieval metric whose differences the report shows.", METRICS)


def main(args: ReportArguments) -> None:
    for file in write(Path(args.folder), args.metric):
        print(file)


def write(folder: Path, metric: str = "recall_at_10") -> tuple[Path, Path]:
    """Writes `report.md` and `report.html` into a folder of results.

    Args:
        metric: the retrieval metric to compare methods by.
    """
    from cosent.reporting import comparison, diagnostics, document
    from cosent.results import read_results

    study = read_results(folder)
    check_installed("jinja2", "matplotlib")
    sections = [
        comparison.overview(study),
        comparison.tuning(study),
        comparison.quality(study),
        comparison.differences(study),
        comparison.retrieval(study, metric),
        comparison.accuracy(study),
        diagnostics.probabilities(study),
        diagnostics.learning(study),
        diagnostics.distributions(study),
        diagnostics.speed(study),
    ]
    sections = [section for section in sections if section.blocks]
    title = f"Study {study.name}"
    markdown, html = folder / "report.md", folder / "report.html"
    markdown.write_text(document.to_markdown(title, sections, html.name), encoding="utf-8")
    html.write_text(document.to_html(title, sections), encoding="utf-8")
    return markdown, html


def check_installed(*libraries: str) -> None:
    missing = [name for name in libraries if find_spec(name) is None]
    if missing:
        raise InputError(f"A report needs {' and '.join(missing)}. Install: pip install -e '.[report]'.")


ARGUMENTS = (ReportArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
