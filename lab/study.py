"""Run a study of lab/studies.yaml, or one of recipes/studies/, with its results in lab/results/.

python -m lab.study gap --seeds 1        takes the flags of `cosent study`
"""

from dataclasses import dataclass
from typing import Any

from cosent.cli import option, read_yaml_file, run
from cosent.comparing.runs import checked_study, read_study
from cosent.jobs.study import StudyArguments, run_study
from lab import RESULTS, ROOT

FILE = ROOT / "lab/studies.yaml"


@dataclass
class LabStudyArguments(StudyArguments):
    """Runs of a study of the lab, and their device."""

    results: str = option(str(RESULTS), "Folder for the results, a folder per study.")


def study_named(name: str) -> dict[str, Any]:
    """The study of an entry of the lab's file, with its defaults, or a shipped one.

    Raises:
        InputError: neither has this name.
    """
    entries = read_yaml_file(str(FILE))
    if name == "defaults" or name not in entries:
        return read_study(name)
    defaults, entry = entries["defaults"], entries[name]
    flags = defaults["flags"] | entry.get("flags", {})
    own = {key: value for key, value in flags.items() if value is not None}
    return checked_study(defaults | entry | {"flags": own}, f"{FILE}, {name}")


def main(args: LabStudyArguments) -> int:
    return run_study(args, args.study, study_named(args.study))


if __name__ == "__main__":
    run(main)
