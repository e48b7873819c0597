"""Run a study of lab/studies.yaml, or one of recipes/studies/, with its results in lab/results/.

python -m lab.study gap --seeds 1                                       takes the flags of `cosent study`
python -m lab.study gap --only cosent --corpus stsb --seeds 1           one cell; without its grid if the rate is set:
                        --set learning_rate=2e-4
"""

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cosent.cli import run
from cosent.comparing.runs import checked_study, read_study
from cosent.errors import InputError
from cosent.flags import option, read_yaml_file
from cosent.jobs.study import StudyArguments, run_study
from lab import RESULTS, ROOT

FILE = ROOT / "lab/studies.yaml"


@dataclass
class LabStudyArguments(StudyArguments):
    """Runs of a study of the lab, and their device."""

    results: str = option(str(RESULTS), "Folder for the results, a folder per study.")
    any_commit: bool = option(False, "Also run code that has changes or is not on main, which no clone can repeat.")


@cache
def entries() -> dict[str, Any]:
    """The entries of the lab's file."""
    return read_yaml_file(str(FILE))


def study_named(name: str) -> dict[str, Any]:
    """The study of an entry of the lab's file, with its defaults, or a shipped one.

    Raises:
        InputError: neither has this name.
    """
    if name == "defaults" or name not in entries():
        return read_study(name)
    defaults, entry = entries()["defaults"], entries()[name]
    flags = defaults["flags"] | entry.get("flags", {})
    own = {key: value for key, value in flags.items() if value is not None}
    return checked_study(defaults | entry | {"flags": own}, f"{FILE}, {name}")


def refuse_unrepeatable(root: Path) -> None:
    """Refuses a clone whose results no other clone can repeat: changed files but results, or a commit not on main."""
    if not (root / ".git").exists():
        return

    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!lab/results").stdout.strip()
    if changes:
        raise InputError(f"{root} has changes: {changes.splitlines()[0]}. Commit them, or pass --any_commit.")
    if git("merge-base", "--is-ancestor", "HEAD", "main").returncode:
        raise InputError(f"The commit of {root} is not on main. Merge it, or pass --any_commit.")


def main(args: LabStudyArguments) -> int:
    if not args.any_commit:
        refuse_unrepeatable(ROOT)
    return run_study(args, args.study, study_named(args.study), args.results)


if __name__ == "__main__":
    run(main)
