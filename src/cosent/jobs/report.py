"""Report a study: a table, paired differences and a picture, from the results of its runs.

cosent report results/NAME                report.md and its picture, next to the results
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cosent.atomic import write_atomically
from cosent.errors import InputError, writing
from cosent.flags import REQUIRED, option


@dataclass
class ReportArguments:
    """Results to report."""

    folder: str = option(REQUIRED, "Folder of results.", positional=True)


def main(args: ReportArguments) -> None:
    print(write(Path(args.folder)))


def write(folder: Path) -> Path:
    """Writes `report.md` into a folder of results, and its picture to `report/`."""
    from cosent.comparing.report import report
    from cosent.comparing.results import read_results

    study = read_results(folder)
    if not study.results:
        raise InputError(f"{folder} holds no results of a study. Run `cosent study recipes/studies/NAME.yaml`.")
    if find_spec("matplotlib") is None:
        raise InputError("A report needs matplotlib. Install: pip install -e '.[report]'.")
    with writing(folder):
        text = report(study, folder / "report/differences.svg")
    write_atomically(folder / "report.md", text)
    return folder / "report.md"
