"""Let a bi-encoder and a cross-encoder teach each other, in rounds of mining and training.

cosent teach --config recipes/teach/mini.yaml --corpus stsb --output runs/teach

Every step is a job of its own in a folder of its own. After a kill, the same command continues. See docs/teaching.md.
"""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

from cosent.cli import REQUIRED, option, parser_of, refuse_negative, run
from cosent.errors import InputError
from cosent.inference.mining import PairArguments, check_pairs
from cosent.losses import TOWERS


@dataclass
class TeachArguments:
    """Who teaches whom, and how often."""

    corpus: str = option(REQUIRED, "Prepared corpus with labels: a name under --data_dir, or a folder.")
    output: str = option(REQUIRED, "Folder for models, pairs and results.")
    rounds: int = option(1, "How often one tower teaches the other and is taught by it.")
    start: str = option("bi_encoder", "The tower that learns from labels and teaches first.", TOWERS)
    teacher: list[str] | None = option(None, "Models that teach first, all of one tower, instead of --start.")
    seeds: list[int] = option([42], "Each seed has its own teachers and students.")
    ensemble: bool = option(False, "The models of all seeds teach together, e.g. by their mean cosine.")
    alone: bool = option(False, "Train the second tower without a teacher too, to compare.")
    labels: str = option("after", "Students learn from labels after the taught pairs, or with them.", ("after", "with"))
    bi_recipe: str = option("recipes/bi_encoder/cosent_mini.yaml", "Recipe of the bi-encoder on labels.")
    bi_taught: str = option("recipes/bi_encoder/taught_mini.yaml", "Recipe of the bi-encoder on taught pairs.")
    cross_recipe: str = option("recipes/cross_encoder/cosent_mini.yaml", "Recipe of the cross-encoder on labels.")
    cross_taught: str = option("recipes/cross_encoder/taught_mini.yaml", "Recipe of the cross-encoder on taught pairs.")
    set: list[str] | None = option(None, "KEY=VALUE flags for every training, which win over recipes.", commas=True)
    set_labels: list[str] | None = option(None, "KEY=VALUE flags for training on labels alone.", commas=True)
    set_taught: list[str] | None = option(None, "KEY=VALUE flags for training on taught pairs.", commas=True)
    accelerate_config: str = option("recipes/accelerate/cpu.yaml", "Configuration of accelerate.")
    data_dir: str = option("data", "Folder of the prepared corpora.")


def main(args: TeachArguments, pairs: PairArguments) -> int:
    from cosent.reporting.teaching_table import teaching_table
    from cosent.studies.results import STUDY_NAME, read_results
    from cosent.studies.runner import STOPPED, describe, study_lock

    steps = steps_of(args, pairs)
    results = Path(args.output, "results")
    results.mkdir(parents=True, exist_ok=True)
    with study_lock(results):
        runs = [step.run for step in steps if step.run is not None]
        describe({"corpora": [args.corpus], "seeds": args.seeds}, runs, results / STUDY_NAME)
        try:
            failed = execute(steps, args, results)
        except KeyboardInterrupt:  # or SIGTERM
            print("stopped; the same command continues", file=sys.stderr)
            return STOPPED
    if failed is not None:
        print(f"failed; the same command tries again: {failed}", file=sys.stderr)
        return 1
    if not runs:
        return 0
    print(teaching_table(read_results(results)))
    print(f"figures: cosent report {results}", file=sys.stderr)
    return 0


def execute(steps, args: TeachArguments, results: Path) -> str | None:
    """Runs the steps that are not finished, one after the other; returns the first failure, or None."""
    with tqdm(total=len(steps), bar_format="{desc} |{bar}| {elapsed}", miniters=0) as bar:
        for number, step in enumerate(steps):
            bar.set_description_str(f"{number + 1}/{len(steps)} {step.folder.name}")
            bar.n = number
            bar.refresh()
            if step.finished:
                continue
            error = step.execute(args.corpus, results, args.accelerate_config, os.cpu_count() or 1)
            if error is not None:
                return f"{step.folder.name}: {error}"
        bar.n = len(steps)
    return None


def steps_of(args: TeachArguments, pairs: PairArguments):
    """The steps, from arguments that were checked before anything runs.

    Raises:
        InputError: a corpus or recipe that is not there, a recipe of the other tower, teachers of both towers, or flags
            that do not go together.
    """
    from cosent.data.corpus import load_corpus
    from cosent.encoders import resolve
    from cosent.models.folder import is_cross_encoder
    from cosent.run_record import CorpusRecord
    from cosent.studies.definition import settings_of
    from cosent.studies.teaching import Course

    check_pairs(pairs)
    refuse_negative(args, "rounds")
    data = CorpusRecord.of(load_corpus(args.corpus, args.data_dir).folder).manifest_sha256
    every = settings_of(args.set or [], "every training")
    on_labels = every | settings_of(args.set_labels or [], "labels")
    on_taught = every | settings_of(args.set_taught or [], "taught pairs")
    recipes = {"bi_encoder": (args.bi_recipe, args.bi_taught), "cross_encoder": (args.cross_recipe, args.cross_taught)}
    encoders = {tower: check_recipes(tower, *both, on_labels, on_taught) for tower, both in recipes.items()}
    towers = {TOWERS[is_cross_encoder(resolve(model))] for model in args.teacher or []} or {args.start}
    if len(towers) > 1:
        raise InputError(
            f"--teacher {' '.join(args.teacher or [])} are of both towers, and the student would be of one of them. "
            "Name models of one tower; `cosent mine --teacher` takes both."
        )
    if len(set(args.seeds)) < max(len(args.seeds), 1 + args.ensemble):
        raise InputError(f"--seeds {args.seeds}: each seed once, and several for --ensemble.")
    first = towers.pop()
    shares = {name: value for name, value in asdict(pairs).items() if value is not None}
    course = Course(args.corpus, args.data_dir, data, Path(args.output), recipes, encoders, (on_labels, on_taught),
                    shares, args.labels == "with")  # fmt: skip
    order = sorted(TOWERS, key=lambda tower: tower != first)
    return course.steps(order, args.rounds, args.seeds, args.teacher or [], args.ensemble, args.alone)


def check_recipes(tower: str, labels: str, taught: str, *flags: dict) -> str:
    """The encoder that a tower starts from on labels.

    Raises:
        InputError: a recipe that is not there, or is of the other tower.
    """
    from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments

    parser = parser_of(*TRAIN_ARGUMENTS)
    settings = [parser.read_recipe(recipe) | more for recipe, more in zip((labels, taught), flags, strict=True)]
    for recipe, values in zip((labels, taught), settings, strict=True):
        if values.get("tower", ModelArguments.tower) != tower:
            raise InputError(f"{recipe} does not train a {tower}, and was given as a recipe of one. Swap the recipes.")
    return settings[0].get("model_name_or_path", ModelArguments.model_name_or_path)


ARGUMENTS = (TeachArguments, PairArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
