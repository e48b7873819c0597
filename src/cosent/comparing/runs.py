"""Runs of a study: its YAML file, checked and expanded to trainings; and these, in separate processes, with results."""

import json
import os
import re
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm

from cosent.cli import launch_command
from cosent.comparing.results import Result, Study, points, run_name, save_results
from cosent.compute.processes import run_logged
from cosent.data.corpus import corpus_folder
from cosent.errors import InputError
from cosent.flags import as_words, parser_of, read_yaml, read_yaml_file, recipe_file
from cosent.models.decision import decision_rules
from cosent.record import QUERIES_NAME, SCORES_NAME, CorpusRecord, read_queries, read_record, read_scores
from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments

NEEDED, OPTIONAL = ("recipes", "corpora", "seeds"), ("flags", "variants", "tune", "tune_flags")
# Flags that a study sets itself for every run.
RESERVED = ("corpus", "seed", "output_dir", "data_dir", "overwrite_output_dir", "resume_from_checkpoint")
EARLIER = "earlier.jsonl"  # next to the results


@dataclass(frozen=True)
class Run:
    """A training: a recipe with flags on top, on corpora, with a seed; `method` and `point` as in `Result`."""

    method: str
    recipe: str
    corpora: tuple[str, ...]
    seed: int
    of_recipe: dict[str, Any] = field(compare=False)  # its values
    flags: dict[str, Any] = field(compare=False)
    point: str = ""

    @property
    def corpus(self) -> str:
        """The training corpus, under its name in the results."""
        return ",".join(self.corpora)

    @property
    def name(self) -> str:
        return run_name(self.method, self.corpora, self.seed)

    @property
    def settings(self) -> dict[str, Any]:
        """Recipe and flags, as JSON holds them; max_steps overrides num_train_epochs."""
        settings = self.of_recipe | self.flags
        if float(settings.get("max_steps") or 0) > 0:
            settings.pop("num_train_epochs", None)
        return json.loads(json.dumps(settings, default=str))

    def words(self, output: Path, data_dir: str) -> list[str]:
        """Command line of the training, without its program."""
        words = ["--config", self.recipe, "--corpus", *self.corpora, "--data_dir", data_dir]
        words += ["--output_dir", str(output), "--seed", str(self.seed)]
        flags = {"disable_tqdm": True, "save_total_limit": 1, "overwrite_output_dir": True}
        return words + as_words(flags | self.flags)


def read_study(path: str) -> dict[str, Any]:
    """Reads a study from its file, see `checked_study`."""
    path = recipe_file(path, "studies")
    return checked_study(read_yaml_file(path), path)


def checked_study(study: Any, path: str) -> dict[str, Any]:
    """A study as YAML has it, with the values of its flags; refuses unknown and missing keys.

    Args:
        path: what errors call it.
    """
    keys = set(study) if isinstance(study, dict) else set()
    wrong, missing = sorted(keys - {*NEEDED, *OPTIONAL}), [key for key in NEEDED if key not in keys]
    if wrong or missing:
        raise InputError(
            f"{path}: a study has the keys {', '.join(NEEDED)} and may have {', '.join(OPTIONAL)}; unknown: "
            f"{', '.join(wrong) or 'none'}; missing: {', '.join(missing) or 'none'}."
        )
    for key in NEEDED:
        expect(
            isinstance(study[key], list) and study[key], f"{path}, {key}", "a list with one entry or more", study[key]
        )
    entries = [entry_of(recipe, path) for recipe in study["recipes"]]
    for recipe, _, _ in entries:
        recipe_file(recipe)
    variants, tune = study.get("variants", {}), study.get("tune", {})
    expect(isinstance(variants, dict), f"{path}, variants", "a mapping of names to flags", variants)
    lists = isinstance(tune, dict) and all(isinstance(values, list) for values in tune.values())
    expect(lists, f"{path}, tune", "lists of values, as {scale: [5, 20]}", tune)
    expect(
        all(re.fullmatch(r"\d+", str(seed)) for seed in study["seeds"]), path, "whole numbers as seeds", study["seeds"]
    )
    study["seeds"] = [int(seed) for seed in study["seeds"]]
    study["recipes"] = [
        {"recipe": recipe, "name": name} | values_of(flags, f"{path}, {name}") for recipe, name, flags in entries
    ]
    study |= {key: values_of(study[key], f"{path}, {key}") for key in ("flags", "tune_flags") if key in study}
    study["variants"] = {name: values_of(flags, f"{path}, {name}") for name, flags in variants.items()}
    study["tune"] = {
        key: [values_of({key: value}, f"{path}, tune")[key] for value in values] for key, values in tune.items()
    }
    return study


def expect(fulfilled: object, where: str, expected: str, value: object) -> None:
    """Refuses a value of a study that is not as expected."""
    if not fulfilled:
        raise InputError(f"{where}: expected {expected}, got {value!r}. Correct the file.")


def entry_of(entry: str | dict[str, Any], path: str = "a study") -> tuple[str, str, dict[str, Any]]:
    """File, name and flags of an entry of `recipes`; the default name is the file's."""
    flags = dict(entry) if isinstance(entry, dict) else {"recipe": entry}
    expect("recipe" in flags, path, "a recipe, or a mapping with `recipe: FILE`, in `recipes`", entry)
    recipe = str(flags.pop("recipe"))
    return recipe, str(flags.pop("name", Path(recipe).stem)), flags


def values_of(flags: dict, where: str) -> dict[str, Any]:
    """The values of flags of training, each of the type of its flag."""
    if not isinstance(flags, dict):
        raise InputError(f"{where} must be a mapping of flags to values ({{}} for none), got {flags!r}.")
    for key, value in flags.items():
        if key in RESERVED:
            raise InputError(f"{where}: {key} is set for every run. Take it out.")
        if value is None:
            raise InputError(f"{where}: {key} must have a value as on a command line, got null.")
    return parser_of(*TRAIN_ARGUMENTS).read_mapping(flags, where)


def settings_of(pairs: list[str], where: str) -> dict[str, Any]:
    """Parses `KEY=VALUE` flags to a mapping, values as YAML."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--set takes KEY=VALUE, got {pair!r}. E.g. --set model_name_or_path=mini pooling=mean")
    settings = {key: read_yaml(value, f"--set {key}") for key, value in (pair.split("=", 1) for pair in pairs)}
    return values_of(settings, f"--set for {where}")


def expand(study: dict[str, Any], overrides: dict[str, Any]) -> list[Run]:
    """All runs of a study, seed by seed, so that a study that is stopped early has every method once."""
    methods = methods_of(study, overrides)
    runs = [
        Run(method, recipe, tuple(map(str, corpus if isinstance(corpus, list) else [corpus])), seed, of_recipe, flags)
        for seed in study["seeds"]
        for corpus in study["corpora"]
        for method, recipe, of_recipe, flags in methods
    ]
    twice = next((name for name, times in Counter(run.name for run in runs).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"Two runs of the study would be called {twice}. Give recipes or corpora other file names.")
    return runs


def selected(runs: list[Run], methods: list[str] | None, corpora: list[str] | None) -> list[Run]:
    """The runs of these methods on these corpora; None stands for all."""
    for flag, names, offered in (
        ("only", methods, {run.method for run in runs}),
        ("corpus", corpora, {run.corpus for run in runs}),
    ):
        if unknown := sorted({*(names or ())} - offered):
            raise InputError(f"--{flag}: the study has no {unknown[0]!r}. It has {', '.join(sorted(offered))}.")
    return [run for run in runs if run.method in (methods or [run.method]) and run.corpus in (corpora or [run.corpus])]


def methods_of(study: dict[str, Any], overrides: dict[str, Any]) -> list[tuple[str, str, dict, dict]]:
    """Name, recipe, values of the recipe, and flags on top, of every method of a study."""
    entries = [entry_of(entry) for entry in study["recipes"]]
    stems = [stem for _, stem, _ in entries]
    methods = []
    for recipe, stem, recipe_flags in entries:
        of_recipe = parser_of(*TRAIN_ARGUMENTS).read_recipe(recipe)
        for variant, variant_flags in (study.get("variants") or {"": {}}).items():
            flags = study.get("flags", {}) | recipe_flags | variant_flags | overrides
            tower = (of_recipe | flags).get("tower", ModelArguments.tower)
            parts = [tower if stems.count(stem) > 1 else "", stem, variant]
            methods.append((" ".join(filter(None, parts)), recipe, of_recipe, flags))
    return methods


def choose(runs: list[Run], tune: dict[str, list], results: list[Result]) -> tuple[list[Run], list[Run]]:
    """Runs with the flags that were best on validation, and runs with an incomplete grid."""
    grid, tried = points(tune), Study("", [], {"tune": tune}, [result for result in results if result.point]).tried
    tuned, waiting = [], []
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
            tuned.append(replace(run, flags=run.flags | grid[max(measured, key=lambda point: measured[point])]))
    return tuned, waiting


@dataclass
class Session:
    """Results of a study, and training of the missing ones.

    Args:
        folder: of the results.
        definition: first line of the results, see `Study`.
        parallel: trainings at the same time, which share the cores.
    """

    folder: Path
    definition: dict[str, Any]
    results: list[Result]
    data_dir: str
    accelerate_config: str
    parallel: int

    def train(self, runs: list[Run]) -> set[str]:
        """Trains runs without a result, and returns the names of failed ones."""
        self.set_aside(runs)
        finished = {(r.point, r.method, r.corpus, r.seed) for r in self.results}
        todo = [run for run in runs if (run.point, run.method, run.corpus, run.seed) not in finished]
        print(f"{self.folder.name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)
        stop, failed = Event(), set()
        with ThreadPoolExecutor(self.parallel) as pool, tqdm(total=len(todo), unit="run") as bar:
            started = {pool.submit(self.execute, run, stop): run for run in todo}
            try:
                for future in as_completed(started):
                    outcome, run = future.result(), started[future]
                    if isinstance(outcome, str):
                        failed.add(run.name)
                        bar.write(f"{run.name} failed: {outcome}", file=sys.stderr)
                    else:
                        self.results.append(outcome)
                        save_results(self.folder, self.definition, self.results)
                    bar.update()
            except BaseException:  # the active runs would continue, and collide with those of the next call
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return failed

    def execute(self, run: Run, stop: Event) -> Result | str:
        """The result of a training in a separate process, or the reason of its failure."""
        output = Path("runs/studies", self.folder.name, run.point, run.name)
        command = launch_command("train", run.words(output, self.data_dir), self.accelerate_config)
        error = run_logged(command, output / "log.txt", max(1, (os.cpu_count() or 1) // self.parallel), stop)
        if error:
            return error
        try:
            return result_of(run, output)
        except (OSError, KeyError, ValueError) as problem:
            return f"its output in {output} cannot be kept ({type(problem).__name__}: {problem})"

    def set_aside(self, runs: list[Run]) -> None:
        """Moves results of these runs with other flags or data to `EARLIER`, so that no report mixes the two."""
        current = {(run.point, run.method, run.corpus): run for run in runs}
        valid = []
        for result in self.results:
            run = current.get((result.point, result.method, result.corpus))
            reason = "" if run is None else difference(result, run, self.data_dir)
            if not reason:
                valid.append(result)
                continue
            print(f"{result.name} was made {reason}: moved to {self.folder / EARLIER}", file=sys.stderr)
            with open(self.folder / EARLIER, "a", encoding="utf-8") as file:
                file.write(json.dumps(result.to_json({}), ensure_ascii=False, default=str) + "\n")
        self.results = valid
        save_results(self.folder, self.definition, self.results)


def result_of(run: Run, output: Path) -> Result:
    """Result of a finished run for the report; deletes the checkpoints."""
    record = read_record(output)
    if record is None:
        raise InputError(f"{output} has no record of the run")
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    scores, queries = read_scores(output / SCORES_NAME), read_queries(output / QUERIES_NAME)
    return Result(
        **vars(record) | {"history": []},
        calibrations={name: rule.calibration for name, rule in decision_rules(output).items() if rule.calibration},
        method=run.method,
        corpus=run.corpus,
        seed=run.seed,
        point=run.point,
        settings=run.settings,
        validation_curve=[(e["epoch"], e["eval_spearman"]) for e in record.history if "eval_spearman" in e],
        scores={name: splits["test"] for name, splits in scores.items() if "test" in splits},
        queries={name: splits["test"] for name, splits in queries.items() if "test" in splits},
    )


def difference(result: Result, run: Run, data_dir: str) -> str:
    """The difference between a stored result and the run in its place; "" if there is none."""
    hashes = {Path(corpus.folder).name: corpus.manifest_sha256 for corpus in result.corpora.values()}
    for name in (*run.corpora, *(run.settings.get("eval_corpora") or [])):
        folder = corpus_folder(name, data_dir) if Path(name).name in hashes else None
        # A corpus that is not on this machine cannot be compared.
        if folder is not None and CorpusRecord.of(folder).manifest_sha256 != hashes[Path(name).name]:
            return f"from other data ({name} was prepared anew)"
    return "" if result.settings == run.settings else "with other settings"
