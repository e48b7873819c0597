"""Definition of a study: a YAML mapping, read and checked before anything runs, and the list of its runs.

recipes:     list of recipe files
corpora:     list of values of --corpus: a name or folder, or a list of them, which are mixed
seeds:       list of numbers
flags:       optional; flags of every run, which win over its recipe
variants:    optional; name -> flags on top of those: every recipe runs once per variant
tune:        optional; flag -> values, of which every method takes the best on validation
tune_flags:  optional; flags of the runs that try these values, e.g. fewer pairs
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from cosent.cli import parser_of, read_yaml, recipe_file
from cosent.data.manifest import Manifest, corpus_folder
from cosent.errors import InputError
from cosent.run_record import CorpusRecord
from cosent.studies.method import Method
from cosent.studies.results import Result
from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments

REQUIRED, OPTIONAL = ("recipes", "corpora", "seeds"), ("flags", "variants", "tune", "tune_flags")
# Flags that the study itself sets for every run.
RESERVED = ("corpus", "seed", "output_dir", "data_dir", "overwrite_output_dir", "resume_from_checkpoint")


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    method: Method
    recipe: str
    corpora: tuple[str, ...]
    seed: int
    flags: dict = field(default_factory=dict, compare=False)  # flags of the study and of the variant

    @property
    def corpus(self) -> str:
        """The training corpus, under its name in the results."""
        return ",".join(self.corpora)

    @property
    def name(self) -> str:
        parts = [*self.method.parts, *(Path(part).name for part in self.corpora), str(self.seed)]
        return "-".join(parts)

    @property
    def settings(self) -> dict:
        return parser_of(*TRAIN_ARGUMENTS).read_recipe(self.recipe) | self.flags


def read_study(path: str) -> dict:
    """Reads a study and checks its keys.

    Raises:
        InputError: no such file, a missing or unknown key, a flag that training does not have or that the study sets
            itself, or a missing recipe.
    """
    path = recipe_file(path, "studies")
    study = read_yaml(Path(path).read_text(encoding="utf-8"), path)
    if not isinstance(study, dict) or not set(REQUIRED) <= set(study) <= {*REQUIRED, *OPTIONAL}:
        wrong = sorted(set(study if isinstance(study, dict) else ()) - {*REQUIRED, *OPTIONAL})
        missing = [key for key in REQUIRED if key not in (study or ())]
        raise InputError(
            f"{path}: a study has the keys {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)};"
            f"{' unknown: ' + ', '.join(wrong) + '.' if wrong else ''}"
            f"{' missing: ' + ', '.join(missing) + '.' if missing else ''}"
        )
    for recipe in study["recipes"]:
        recipe_file(recipe)
    for name in study.get("variants", {}):
        if not re.fullmatch(r"[\w.,+-]+", name):
            raise InputError(f"{path}: {name!r} becomes part of a file name. Use only letters, digits and _ . , + -")
    read = {key: study[key] for key in REQUIRED} | {"seeds": seeds_of(study["seeds"], path)}
    if "flags" in study:
        read["flags"] = values_of(study["flags"], f"{path}, flags")
    if "variants" in study:
        read["variants"] = {name: values_of(flags, f"{path}, {name}") for name, flags in study["variants"].items()}
    return read | tuning_of(study, path)


def tuning_of(study: dict, path: str) -> dict:
    """The keys `tune` and `tune_flags` of a study, read and checked.

    Raises:
        InputError: nothing to choose from, or a flag that the study sets elsewhere too.
    """
    tune = study.get("tune", {})
    if not isinstance(tune, dict) or not all(isinstance(values, list) and len(values) > 1 for values in tune.values()):
        raise InputError(
            f"{path}, tune: a flag is chosen among two or more values, as {{learning_rate: [2.0e-04, 5.0e-04]}}, got "
            f"{tune!r}."
        )
    if "tune_flags" in study and not tune:
        raise InputError(f"{path} has tune_flags but no tune, so that no run would have them. Take them out.")
    where = f"{path}, tune"
    grid = {key: [values_of({key: value}, where)[key] for value in values] for key, values in tune.items()}
    flags = values_of(study.get("tune_flags", {}), f"{path}, tune_flags")
    places = {"flags": (study.get("flags", {}), grid), "tune_flags": (flags, grid)}
    places |= {name: (variant, {*grid, *flags}) for name, variant in study.get("variants", {}).items()}
    for place, (given, tuned) in places.items():
        for key in given.keys() & tuned:
            raise InputError(f"{path}: {key} is set by the tuning and by {place}, of which one is ignored. Keep one.")
    return {"tune": grid} | ({"tune_flags": flags} if flags else {}) if grid else {}


def seeds_of(written: list[str], path: str) -> list[int]:
    try:
        return [int(seed) for seed in written]
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: seeds must be a list of whole numbers, as [1, 2, 3], got {written}.") from error


def values_of(flags: dict, where: str) -> dict:
    """The values of flags of training, each of the type of its flag.

    Raises:
        InputError: not a mapping, a flag that training does not have or that the study sets itself, or a wrong value.
    """
    if not isinstance(flags, dict):
        raise InputError(f"{where} must be a mapping of flags to values ({{}} for none), got {flags!r}.")
    for key, value in flags.items():
        if key in RESERVED:
            raise InputError(f"{where}: {key} is set by the study for every run. Take it out.")
        if value is None:
            raise InputError(f"{where}: {key} must have a value as on a command line, got null.")
    return parser_of(*TRAIN_ARGUMENTS).read_mapping(flags, where)


def settings_of(pairs: list[str], where: str) -> dict:
    """Parses `KEY=VALUE` flags to a mapping, values as YAML."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--set takes KEY=VALUE, got {pair!r}. E.g. --set model_name_or_path=mini pooling=mean")
    settings = {key: read_yaml(value, f"--set {key}") for key, value in (pair.split("=", 1) for pair in pairs)}
    return values_of(settings, f"--set for {where}")


def expand(study: dict, overrides: dict) -> list[Run]:
    """All runs of a study, seed by seed, so that a study that is stopped early has every method once.

    Raises:
        InputError: two runs with the same name, whose results would replace each other.
    """
    runs = [
        Run(method, recipe, tuple(map(str, corpus)) if isinstance(corpus, list) else (str(corpus),), seed, flags)
        for seed in study["seeds"]
        for corpus in study["corpora"]
        for method, (recipe, flags) in methods_of(study, overrides).items()
    ]
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"Two runs of the study would be called {twice}, but results are kept by name. Give corpora other folder "
            "names."
        )
    return runs


def methods_of(study: dict, overrides: dict) -> dict[Method, tuple[str, dict]]:
    """Recipe and flags of every method of a study, in order. Variants that the overrides make equal are merged.

    Raises:
        InputError: two recipes of the same tower and name.
    """
    variants = study.get("variants") or {"": {}}
    distinct: dict[str, str] = {}
    for name, flags in variants.items():
        distinct.setdefault(json.dumps(flags | overrides, sort_keys=True), name)
    merged = len(distinct) == 1 < len(variants)
    stems = [Path(recipe).stem for recipe in study["recipes"]]
    methods = {}
    for recipe, stem in zip(study["recipes"], stems, strict=True):
        settings = parser_of(*TRAIN_ARGUMENTS).read_recipe(str(recipe))
        for variant in distinct.values():
            flags = study.get("flags", {}) | variants[variant] | overrides
            tower = (settings | flags).get("tower", ModelArguments.tower)
            method = Method(tower, stem, "" if merged else str(variant), names_tower=stems.count(stem) > 1)
            if method in methods:
                raise InputError(
                    f"Two recipes of the study are called {tower} {stem}, but results are kept by name. Give one of "
                    "them another file name."
                )
            methods[method] = str(recipe), flags
    return methods


def has_settings_of(result: Result, run: Run) -> bool:
    """Whether a result has the settings of a run, and no others that the study has dropped since.

    The number of epochs decides nothing where the number of steps is given.
    """
    given_up = set(result.flags) - set(run.settings)
    counted = float(run.settings.get("max_steps") or 0) > 0
    asked = {key: value for key, value in run.settings.items() if not (counted and key == "num_train_epochs")}
    return not given_up and all(same(result.recipe.get(key), value) for key, value in asked.items())


def prepared_anew(result: Result, run: Run, data_dir: str) -> list[str]:
    """Corpora of a run that were prepared anew after a result; those that are not on this machine are not compared."""
    names = [*run.corpora, *(run.settings.get("eval_corpora") or [])]
    folders = [folder for folder in (corpus_folder(name, data_dir) for name in names) if folder is not None]
    there = {Manifest.load(folder).name: CorpusRecord.of(folder) for folder in folders}
    shared = [name for name in there if name in result.corpora]
    return [name for name in shared if there[name].manifest_sha256 != result.corpora[name].manifest_sha256]


def same(one, other) -> bool:
    """Whether two values of a flag are equivalent: a recipe may have 6 where the record has 6.0.

    A list of one may be given as its value alone. Lists were recorded as `a,b` by version 0.1.
    """
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, list) or isinstance(other, list):
        values, alone = (one, other) if isinstance(one, list) else (other, one)
        return same(values, [alone]) or same(values, str(alone).split(","))
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return str(one) == str(other)


def work(run: Run, data_dir: str) -> float:
    """Number of pairs that a run trains on over all epochs, to estimate the remaining time; 1 if unknown."""
    try:
        rows = [Manifest.load(Path(data_dir, name)).splits["train"]["rows"] for name in run.corpora]
    except (InputError, KeyError):  # a folder elsewhere, or a missing corpus, which the run itself will report
        return 1.0
    limit = run.settings.get("limit_train") or max(rows)
    return sum(min(count, limit) for count in rows) * float(run.settings.get("num_train_epochs", 3))
