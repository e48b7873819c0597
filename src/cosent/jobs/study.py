"""Run every recipe and variant of a study on every corpus with every seed, through `accelerate launch`.

cosent study recipes/studies/losses_stsb.yaml --parallel 2

A study is a YAML mapping:

recipes:     list of recipe files, or of {recipe: FILE, name: NAME, FLAG: VALUE ...}, whose flags only that recipe gets
corpora:     list of values of --corpus: a name or folder, or a list of them, which are mixed
seeds:       list of numbers
flags:       optional; flags of every run, which win over its recipe
variants:    optional; name -> flags on top of those: every recipe runs once per variant
tune:        optional; flag -> values, of which every method takes the best on validation
tune_flags:  optional; flags of the runs that try these values, e.g. fewer pairs

A run whose result has the same settings and data is never repeated, so that a study continues where it stopped; a run
that fails is listed at the end, and the others continue. See docs/studies.md.
"""

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from cosent.cli import REQUIRED, option, parser_of, read_yaml, recipe_file
from cosent.cli import run as run_job
from cosent.errors import InputError

if TYPE_CHECKING:
    from cosent.comparing.results import Result
    from cosent.training.launches import Run

NEEDED, OPTIONAL = ("recipes", "corpora", "seeds"), ("flags", "variants", "tune", "tune_flags")
EARLIER = "earlier.jsonl"  # next to the results


@dataclass
class StudyArguments:
    """Runs of a study, and where they run."""

    study: str = option(REQUIRED, "recipes/studies/<name>.yaml", positional=True)
    seeds: list[int] | None = option(None, "Seeds that replace those of the study.")
    set: list[str] | None = option(
        None,
        "KEY=VALUE flags for every run that win over the study's, e.g. limit_train=500; results go to a folder that is "
        "named after them.",
        commas=True,
    )
    parallel: int = option(1, "Parallel runs, which share the cores.")
    accelerate_config: str = option("cpu", "Configuration of accelerate.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    results: str = option("results", "Folder for the results, a folder per study; models and logs go to runs/studies.")


def main(args: StudyArguments) -> int:
    return run_study(args, Path(args.study).stem, read_study(args.study))


def run_study(args: StudyArguments, name: str, study: dict[str, Any]) -> int:
    """Trains what the results of a study lack; returns the exit status."""
    from cosent.comparing.results import name_of, points, read_study_folder
    from cosent.training.launches import STOPPED, settings_of, study_lock

    overrides = settings_of(args.set or [], args.study)
    tune = {key: values for key, values in study.pop("tune", {}).items() if key not in overrides}
    tune_flags = study.pop("tune_flags", {})
    # A trial must never count as a run of the study itself.
    folder = Path(args.results, "-".join([name, name_of(overrides)] if overrides else [name]))
    runs = expand(study | {"seeds": args.seeds or study["seeds"]}, overrides)
    first = study | {"seeds": study["seeds"][:1]}
    trials = [replace(run, point=point) for point, flags in points(tune).items()
              for run in expand(first, tune_flags | overrides | flags)]  # fmt: skip
    definition = {
        "methods": list(dict.fromkeys(run.method for run in runs)),
        "corpora": list(dict.fromkeys(run.corpus for run in runs)),
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        **({"tune": tune} if tune else {}),
    }
    with study_lock(folder):
        there = read_study_folder(folder)
        session = Session(args, folder, definition, there.results + there.trials)
        try:
            failed = session.train(trials) if trials else set()
            chosen, waiting = choose(runs, tune, session.results) if tune else (runs, [])
            session.take_over(chosen)
            failed |= session.train(chosen, waiting)
        except KeyboardInterrupt:  # or SIGTERM
            print("stopped, with the active runs; the same command continues", file=sys.stderr)
            return STOPPED
    if failed:
        print(f"failed; the same command tries again: {', '.join(sorted(failed))}", file=sys.stderr)
    if waiting:
        print(f"not run, since their grid is not complete: {', '.join(run.name for run in waiting)}", file=sys.stderr)
    print(f"figures and intervals: cosent report {folder}", file=sys.stderr)
    return 1 if failed or waiting else 0


@dataclass
class Session:
    """Results of a study, and the training of what they lack."""

    args: StudyArguments
    folder: Path
    definition: dict[str, Any]
    results: list["Result"] = field(default_factory=list)

    def train(self, runs: list["Run"], waiting: Sequence["Run"] = ()) -> set[str]:
        """Trains what has no result yet, and returns the names of the runs that failed.

        Args:
            waiting: runs whose settings are not known yet; their earlier results stay.
        """
        from tqdm import tqdm

        self.set_aside(runs, waiting)
        finished = {(r.point, r.method, r.corpus, r.seed) for r in self.results}
        todo = [run for run in runs if (run.point, run.method, run.corpus, run.seed) not in finished]
        print(f"{self.folder.name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)
        stop, failed = Event(), set()
        with ThreadPoolExecutor(self.args.parallel) as pool, tqdm(total=len(todo), unit="run") as bar:
            started = {pool.submit(self.execute, run, stop): run for run in todo}
            try:
                for future in as_completed(started):
                    outcome, run = future.result(), started[future]
                    if isinstance(outcome, str):
                        failed.add(run.name)
                        bar.write(f"{run.name} failed: {outcome}", file=sys.stderr)
                    else:
                        self.results.append(outcome)
                        self.save()
                    bar.update()
            except BaseException:  # the active runs would continue, and collide with those of the next call
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return failed

    def execute(self, run: "Run", stop: Event) -> "Result | str":
        """The result of a training in a separate process, or the reason of its failure."""
        from cosent.training import launches

        output = Path("runs/studies", self.folder.name, run.point, run.name)
        job = run.job(output, self.args.data_dir, overwrite_output_dir=True)
        error = launches.launch(job, output, self.args.accelerate_config, self.args.parallel, stop)
        if error:
            return error
        try:
            return launches.result_of(run, output)
        except (OSError, KeyError, ValueError) as problem:
            return f"its output in {output} cannot be kept ({type(problem).__name__}: {problem})"

    def save(self) -> None:
        from cosent.comparing.results import save_results

        save_results(self.folder, self.definition, self.results)

    def set_aside(self, runs: list["Run"], waiting: Sequence["Run"] = ()) -> None:
        """Moves results that the study would no longer produce (other flags, methods or data) out of its report."""
        from cosent.training.launches import prepared_anew

        current = {(run.point, run.method, run.corpus): run for run in runs}
        unknown = {(run.point, run.method, run.corpus) for run in waiting}
        of_grid, kept = bool(runs and runs[0].point), []
        for result in self.results:
            key = (result.point, result.method, result.corpus)
            run, why = current.get(key), ""
            if run is not None:
                anew = prepared_anew(result, run, self.args.data_dir)
                why = f"from other data ({', '.join(anew)} was prepared anew)" if anew else ""
            if (run is None and not result.point and not of_grid and key not in unknown) or (
                run is not None and result.settings != run.settings
            ):
                why = why or "with other settings"
            if not why:
                kept.append(result)
                continue
            print(f"{result.name} was made {why}: moved to {self.folder / EARLIER}", file=sys.stderr)
            with open(self.folder / EARLIER, "a", encoding="utf-8") as file:
                file.write(json.dumps(result.to_json({}), ensure_ascii=False, default=str) + "\n")
        self.results = kept
        self.save()

    def take_over(self, runs: list["Run"]) -> None:
        """Takes runs of the grid for runs of the study that have the same settings."""
        there = {(r.method, r.corpus, r.seed): r.settings for r in self.results if not r.point}
        trials = [result for result in self.results if result.point]
        for run in runs:
            key = (run.method, run.corpus, run.seed)
            same = [t for t in trials if (t.method, t.corpus, t.seed) == key and t.settings == run.settings]
            if same and there.get(key) != run.settings:
                self.results.append(replace(same[0], point=""))


def choose(runs: list["Run"], tune: dict[str, list], results: list["Result"]) -> tuple[list["Run"], list["Run"]]:
    """Runs with the flags that were best on validation, and runs whose grid is not complete."""
    from cosent.comparing.results import Study, points

    grid, tried = points(tune), Study("", [], {"tune": tune}, [result for result in results if result.point]).tried
    chosen, waiting = [], []
    for run in runs:
        reached = tried.get((run.method, run.corpus), {})
        measured = {point: value for point, value in reached.items() if value is not None}
        if len(reached) < len(grid):
            waiting.append(run)
        elif not measured:
            raise InputError(
                f"{run.method} on {run.corpus} has no validation Spearman to choose by. Give the corpus a validation "
                "split with two different labels, or take `tune` out."
            )
        else:
            chosen.append(replace(run, flags=run.flags | grid[max(measured, key=lambda point: measured[point])]))
    return chosen, waiting


def read_study(path: str) -> dict[str, Any]:
    """Reads a study from its file, see `checked_study`."""
    path = recipe_file(path, "studies")
    return checked_study(read_yaml(Path(path).read_text(encoding="utf-8"), path), path)


def checked_study(study: Any, path: str) -> dict[str, Any]:
    """A study as YAML has it, with the values of its flags; refuses unknown and missing keys.

    Args:
        path: what errors call it.
    """
    from cosent.training.launches import values_of

    keys = set(study) if isinstance(study, dict) else set()
    wrong, missing = sorted(keys - {*NEEDED, *OPTIONAL}), [key for key in NEEDED if key not in keys]
    if wrong or missing:
        raise InputError(
            f"{path}: a study has the keys {', '.join(NEEDED)} and may have {', '.join(OPTIONAL)}; unknown: "
            f"{', '.join(wrong) or 'none'}; missing: {', '.join(missing) or 'none'}."
        )
    for key in NEEDED:
        if not isinstance(study[key], list) or not study[key]:
            raise InputError(f"{path}, {key}: expected a list with one entry or more, got {study[key]!r}.")
    entries = [entry_of(recipe, path) for recipe in study["recipes"]]
    for recipe, _, _ in entries:
        recipe_file(recipe)
    variants, tune = study.get("variants", {}), study.get("tune", {})
    if not isinstance(variants, dict):
        raise InputError(f"{path}, variants: expected a mapping of names to flags, got {variants!r}.")
    for name in (*variants, *(name for _, name, _ in entries)):
        if not re.fullmatch(r"[\w.,+-]+", name):
            raise InputError(f"{path}: {name!r} becomes part of a file name. Use only letters, digits and _ . , + -")
    if not isinstance(tune, dict) or not all(isinstance(values, list) and len(values) > 1 for values in tune.values()):
        raise InputError(f"{path}, tune: expected two or more values per flag, as {{scale: [5, 20]}}, got {tune!r}.")
    try:
        study["seeds"] = [int(seed) for seed in study["seeds"]]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: seeds must be a list of whole numbers, got {study['seeds']}.") from error
    study["recipes"] = [{"recipe": recipe, "name": name} | values_of(flags, f"{path}, {name}")
                        for recipe, name, flags in entries]  # fmt: skip
    study |= {key: values_of(study[key], f"{path}, {key}") for key in ("flags", "tune_flags") if key in study}
    study["variants"] = {name: values_of(flags, f"{path}, {name}") for name, flags in variants.items()}
    study["tune"] = {key: [values_of({key: value}, f"{path}, tune")[key] for value in values]
                     for key, values in tune.items()}  # fmt: skip
    return study


def entry_of(entry: str | dict[str, Any], path: str = "a study") -> tuple[str, str, dict[str, Any]]:
    """File, name and flags of an entry of `recipes`; a recipe has the name of its file unless it is given one."""
    own = dict(entry) if isinstance(entry, dict) else {"recipe": entry}
    if "recipe" not in own:
        raise InputError(f"{path}: expected a recipe, or a mapping with `recipe: FILE`, in `recipes`, got {entry!r}.")
    recipe = str(own.pop("recipe"))
    return recipe, str(own.pop("name", Path(recipe).stem)), own


def expand(study: dict[str, Any], overrides: dict[str, Any]) -> list["Run"]:
    """All runs of a study, seed by seed, so that a study that is stopped early has every method once."""
    from cosent.training.launches import Run

    runs = [
        Run(method, recipe, tuple(map(str, corpus)) if isinstance(corpus, list) else (str(corpus),), seed, flags)
        for seed in study["seeds"]
        for corpus in study["corpora"]
        for method, recipe, flags in methods_of(study, overrides)
    ]
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"Two runs of the study would be called {twice}. Give recipes or corpora other file names.")
    return runs


def methods_of(study: dict[str, Any], overrides: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, recipe and flags of every method of a study; variants that the overrides make equal are merged."""
    from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments

    variants = study.get("variants") or {"": {}}
    distinct: dict[str, str] = {}
    for name, flags in variants.items():
        distinct.setdefault(json.dumps(flags | overrides, sort_keys=True), name)
    merged = len(distinct) == 1 < len(variants)
    entries = [entry_of(entry) for entry in study["recipes"]]
    stems = [stem for _, stem, _ in entries]
    methods = []
    for recipe, stem, own in entries:
        settings = parser_of(*TRAIN_ARGUMENTS).read_recipe(recipe)
        for variant in distinct.values():
            flags = study.get("flags", {}) | own | variants[variant] | overrides
            tower = (settings | flags).get("tower", ModelArguments.tower)
            parts = [tower] * (stems.count(stem) > 1) + [stem] + [variant] * (bool(variant) and not merged)
            methods.append((" ".join(parts), recipe, flags))
    return methods


ARGUMENTS = (StudyArguments,)

if __name__ == "__main__":
    run_job(main, *ARGUMENTS, shares_work=False)
