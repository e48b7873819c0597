"""Run the grid of a study and choose on validation.

Every point of the grid is the study itself with its first seed and the flags of the point, under
`tuning/<point>` next to the results; so it resumes, fails and is set aside as any other.
"""

import shutil
from dataclasses import replace
from pathlib import Path

from cosent.errors import InputError
from cosent.studies.definition import Run, expand, has_settings_of
from cosent.studies.grid import TUNING, Tried, points
from cosent.studies.results import Result, read_grid
from cosent.studies.runner import STOPPED, Place, run_all, set_aside

GRID_KEYS = ("tune", "tune_flags")


def untuned(study: dict, overrides: dict) -> dict:
    """The study without the grid of the flags that are given by `--set`."""
    grid = {key: values for key, values in study.get("tune", {}).items() if key not in overrides}
    plain = {key: value for key, value in study.items() if key not in GRID_KEYS}
    return study | {"tune": grid} if grid else plain


def run_grid(study: dict, overrides: dict, results: Path, place: Place) -> int:
    """Trains every method at every point of the grid, and returns an exit status; 0 without a grid."""
    plain = untuned(study, study.get("tune", {})) | {"seeds": study["seeds"][:1]}
    status = 0
    for name, point in points(study.get("tune", {})).items():
        folder = results / TUNING / name
        folder.mkdir(parents=True, exist_ok=True)
        runs = expand(plain, study.get("tune_flags", {}) | overrides | point)
        ended = run_all(plain, folder, runs, replace(place, runs=str(Path(place.runs, results.name, TUNING))))
        if ended == STOPPED:
            return ended
        status = status or ended
    return status


def with_choices(study: dict, runs: list[Run], results: Path, place: Place) -> tuple[list[Run], list[Run]]:
    """Runs with the flags that were best on validation, and runs whose grid is not complete.

    A run that the grid already was, with the same seed and settings, is taken from there.
    """
    if not study.get("tune"):
        return runs, []
    points_of, waiting = choose(study, runs, results)
    chosen = list(points_of)
    set_aside(results, chosen, place.data_dir, waiting)
    for run, point in points_of.items():
        take_over(run, results, Path(place.runs, results.name), point)
    return chosen, waiting


def choose(study: dict, runs: list[Run], results: Path) -> tuple[dict[Run, str], list[Run]]:
    """Runs with the flags that were best on validation and the name of that point; and runs that have to wait.

    Raises:
        InputError: no validation to choose on.
    """
    grid, found = points(study["tune"]), read_grid(results, study["tune"])
    chosen, waiting = {}, []
    for run in runs:
        tried = found.get((run.method, run.corpus), Tried())
        if len(tried.validation) < len(grid):
            waiting.append(run)
        elif all(value is None for value in tried.validation.values()):
            raise InputError(
                f"{results / TUNING}: {run.method.name} on {run.corpus} has no validation Spearman, so that no value "
                "can be chosen. Give the corpus a validation split with two different labels, or take `tune` out."
            )
        else:
            chosen[replace(run, flags=run.flags | grid[tried.chosen])] = tried.chosen
    return chosen, waiting


def take_over(run: Run, results: Path, runs: Path, point: str) -> None:
    """Makes a run of the grid the run of the study that it equals, with its model; does nothing for other runs."""
    file = results / TUNING / point / f"{run.name}.json"
    if (results / file.name).is_file() or not file.is_file():
        return
    trial, model = Result.read(file), runs / TUNING / point / run.name
    if not has_settings_of(trial, run):
        return
    if model.is_dir():
        shutil.rmtree(runs / run.name, ignore_errors=True)
        model.replace(runs / run.name)
    for part in trial.files:  # the result last: a run that has one is not repeated
        shutil.copyfile(part, results / part.name)
