"""Run every recipe and variant of a study on every corpus with every seed, through `accelerate launch`.

cosent study recipes/studies/losses_stsb.yaml --parallel 2

A run whose JSON under `results/<study>` has the same settings is never repeated, so that a study continues
where it stopped; a run that fails is listed at the end, and the others continue. A study with a grid first runs it
with its first seed, and every method takes what is best on validation. See docs/studies.md.
"""

from dataclasses import dataclass
from pathlib import Path

from cosent.cli import REQUIRED, option, run


@dataclass
class StudyArguments:
    """Runs of a study, and where they run."""

    study: str = option(REQUIRED, "recipes/studies/<name>.yaml", positional=True)
    seeds: list[int] | None = option(None, "Seeds that replace those of the study.")
    limit_train: int | None = option(None, "Train on this many pairs, to try a study in minutes.")
    set: list[str] | None = option(
        None,
        "KEY=VALUE flags for every run that win over the study's; results go to a folder that is named after them.",
        commas=True,
    )
    parallel: int = option(1, "Parallel runs, which share the cores.")
    accelerate_config: str = option("recipes/accelerate/cpu.yaml", "Configuration of accelerate.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    runs: str = option("runs/studies", "Folder for models and logs.")
    results: str = option("results", "Folder for the JSON of each run.")


def main(args: StudyArguments) -> int:
    from cosent.studies.definition import expand, read_study, settings_of
    from cosent.studies.grid import name_of
    from cosent.studies.runner import STOPPED, Place, run_all, study_lock
    from cosent.studies.tuning import run_grid, untuned, with_choices

    study, name = read_study(args.study), Path(args.study).stem
    overrides = settings_of(args.set or [], args.study)
    if args.limit_train:
        overrides["limit_train"] = args.limit_train
    study = untuned(study, overrides)
    # A trial must never count as a run of the study itself.
    results = Path(args.results, "-".join([name, name_of(overrides)] if overrides else [name]))
    runs = expand(study | {"seeds": args.seeds or study["seeds"]}, overrides)
    results.mkdir(parents=True, exist_ok=True)
    place = Place(args.accelerate_config, args.data_dir, args.runs, args.parallel)
    with study_lock(results):
        status = run_grid(study, overrides, results, place)
        if status == STOPPED:
            return status
        chosen, waiting = with_choices(study, runs, results, place)
        return run_all(study, results, chosen, place, waiting) or status


ARGUMENTS = (StudyArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
