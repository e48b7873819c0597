"""Run every recipe and variant of a study on every corpus with every seed, through `accelerate launch`.

cosent study recipes/studies/losses_stsb.yaml --parallel 2
cosent study losses_stsb --only cosent --corpus stsb --seeds 1 --set learning_rate=5e-4    one run

Results go to results/NAME, models and logs to runs/studies/NAME.

A study is a YAML mapping:

recipes:     list of recipe files, or of {recipe: FILE, name: NAME, FLAG: VALUE ...}, whose flags only that recipe gets
corpora:     list of values of --corpus: a name or folder, or a list of them, which are mixed
seeds:       list of numbers
flags:       optional; flags of every run, which win over its recipe
variants:    optional; name -> flags on top of those: every recipe runs once per variant
tune:        optional; flag -> values, of which every method takes the best on validation
tune_flags:  optional; flags of the runs that try these values, e.g. fewer pairs

A run whose result has the same settings and data is never repeated, so that a study continues where it stopped; a run
that fails is listed at the end, and the others continue. See docs/evaluate.md.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cosent.atomic import locked
from cosent.data.corpus import DataFolder, existing_corpus
from cosent.flags import REQUIRED, option

STOPPED = 130  # exit status after Ctrl-C


@dataclass
class StudyArguments(DataFolder):
    """Study options."""

    study: str = option(REQUIRED, "Name of a shipped study, or its YAML file.", positional=True)
    seeds: list[int] | None = option(None, "Seeds instead of those of the study.")
    only: list[str] | None = option(None, "Methods to run, by their names in the tables.")
    corpus: list[str] | None = option(None, "Corpora of the study to run.")
    set: list[str] | None = option(
        None,
        "KEY=VALUE flags for every run, which override those of the study, e.g. limit_train=500; their results go to a "
        "folder of their own.",
    )
    parallel: int = option(1, "Number of runs at a time, which share the cores.")
    accelerate_config: str = option("cpu", "Configuration of accelerate.")


def main(args: StudyArguments) -> int:
    from cosent.comparing.runs import read_study

    return run_study(args, Path(args.study).stem, read_study(args.study))


def run_study(args: StudyArguments, name: str, study: dict[str, Any], results: str | Path = "results") -> int:
    """Trains what the results of a study lack; returns the exit status."""
    from cosent.comparing.report import warnings
    from cosent.comparing.results import name_of, points, read_results
    from cosent.comparing.runs import Session, choose, expand, selected, settings_of

    overrides = settings_of(args.set or [], args.study)
    tune = {key: values for key, values in study.pop("tune", {}).items() if key not in overrides}
    tune_flags = study.pop("tune_flags", {})
    # A trial must never count as a run of the study itself.
    folder = Path(results, "-".join([name, name_of(overrides)] if overrides else [name]))
    every = expand(study | {"seeds": args.seeds or study["seeds"]}, overrides)
    runs = selected(every, args.only, args.corpus)
    first = study | {"seeds": study["seeds"][:1]}
    trials = [
        replace(run, point=point)
        for point, flags in points(tune).items()
        for run in selected(expand(first, tune_flags | overrides | flags), args.only, args.corpus)
    ]
    definition = {
        "methods": list(dict.fromkeys(run.method for run in every)),
        "corpora": list(dict.fromkeys(run.corpus for run in every)),
        "seeds": list(dict.fromkeys(run.seed for run in every)),
        **({"tune": tune} if tune else {}),
    }
    for corpus in {corpus for run in runs for corpus in run.corpora}:
        existing_corpus(corpus, args.data_dir)
    with locked(folder):
        folder.mkdir(parents=True, exist_ok=True)
        stored = read_results(folder)
        session = Session(
            folder, definition, stored.results + stored.trials, args.data_dir, args.accelerate_config, args.parallel
        )
        try:
            failed = session.train(trials) if trials else set()
            tuned, waiting = choose(runs, tune, session.results) if tune else (runs, [])
            failed |= session.train(tuned)
        except KeyboardInterrupt:  # or SIGTERM
            print("stopped, with the active runs; the same command continues", file=sys.stderr)
            return STOPPED
    if failed:
        print(f"failed; the same command tries again: {', '.join(sorted(failed))}", file=sys.stderr)
    if waiting:
        print(f"not run, since their grid is not complete: {', '.join(run.name for run in waiting)}", file=sys.stderr)
    for warning in warnings(read_results(folder)):
        print(f"warning: {warning.replace('**', '')}", file=sys.stderr)
    print(f"intervals: cosent report {folder}", file=sys.stderr)
    return 1 if failed or waiting else 0
