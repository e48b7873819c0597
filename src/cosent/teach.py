"""Let a bi-encoder and a cross-encoder teach each other, in rounds of mining and training.

cosent teach --config recipes/teach/mini.yaml --corpus stsb --output runs/teach

The bi-encoder learns from labels first. In a round it labels pairs for the cross-encoder, which learns from them, then
from the labels, and labels pairs for a new bi-encoder. Every step is a job of its own in a folder of its own; after a
kill, the same command continues. See docs/retrieval.md.
"""

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from cosent.cli import REQUIRED, as_words, option, parser_of, read_yaml, refuse_negative
from cosent.cli import run as run_job
from cosent.errors import InputError, write_atomically
from cosent.inference.arguments import PairArguments

if TYPE_CHECKING:
    from cosent.training.launches import Run

ASKED, DONE = "teach.json", "done"  # in the output: what was asked for; in the folder of a finished step


@dataclass
class TeachArguments:
    """What both towers learn from, and how often one teaches the other."""

    corpus: str = option(REQUIRED, "Prepared corpus with labels: a name under --data_dir, or a folder.")
    output: str = option(REQUIRED, "Folder for models, pairs and results.")
    rounds: int = option(1, "How often the bi-encoder teaches the cross-encoder and is taught by it.")
    seed: int = option(42, "Seed of every step.")
    bi_encoder: list[str] = option(
        ["bi_encoder/cosent_mini", "bi_encoder/taught_mini"], "Its recipes: on labels, and on taught pairs."
    )
    cross_encoder: list[str] = option(["cross_encoder/cosent_mini", "cross_encoder/taught_mini"], "Likewise.")
    set: list[str] | None = option(None, "KEY=VALUE flags for every training, which win over recipes.", commas=True)
    set_labels: list[str] | None = option(None, "KEY=VALUE flags for training on labels.", commas=True)
    set_pairs: list[str] | None = option(
        None, "KEY=VALUE flags of `cosent mine`, e.g. random=3000 range_min=0.", commas=True
    )
    accelerate_config: str = option("cpu", "Configuration of accelerate.")
    data_dir: str = option("data", "Folder of the prepared corpora.")


@dataclass(frozen=True)
class Step:
    """A job and its folder; the training that it is, or the corpus that it writes."""

    folder: Path
    job: list[str]
    run: "Run | None" = None
    made: Path | None = None


def main(args: TeachArguments) -> int:
    from cosent.data.corpus import load_corpus
    from cosent.results import read_study_folder, save_results
    from cosent.run import CorpusRecord
    from cosent.training import launches

    data = CorpusRecord.of(load_corpus(args.corpus, args.data_dir).folder).manifest_sha256
    steps, folder, asked = steps_of(args), Path(args.output, "results"), Path(args.output, ASKED)
    methods = [step.run.method for step in steps if step.run is not None]
    definition = {"methods": methods, "corpora": [args.corpus], "seeds": [args.seed]}
    wanted = json.dumps(asdict(args) | {"data": data}, ensure_ascii=False, indent=1)
    with launches.study_lock(folder), tqdm(steps, unit="step") as bar:
        if asked.is_file() and asked.read_text(encoding="utf-8") != wanted:
            raise InputError(f"{asked} has other flags or data than these. Name another --output, or remove this one.")
        write_atomically(asked, wanted)
        for step in bar:
            bar.set_description_str(step.folder.name)
            if (step.folder / DONE).is_file():
                continue
            if step.made is not None:  # complete, but by a job that was killed before it could say so
                shutil.rmtree(step.made, ignore_errors=True)
            try:
                error = launches.launch(step.job, step.folder, args.accelerate_config)
            except KeyboardInterrupt:  # or SIGTERM
                bar.write("stopped; the same command continues", file=sys.stderr)
                return launches.STOPPED
            if error:
                bar.write(f"failed; the same command tries again: {step.folder.name}: {error}", file=sys.stderr)
                return 1
            if step.run is not None:
                result = launches.result_of(step.run, step.folder, args.corpus)
                there = read_study_folder(folder).results
                save_results(folder, definition, [*(each for each in there if each.name != result.name), result])
            (step.folder / DONE).touch()
    print(f"tables and figures: cosent report {folder}", file=sys.stderr)
    return 0


def steps_of(args: TeachArguments) -> list[Step]:
    """All steps in order, each after those whose models or pairs it reads."""
    from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments
    from cosent.training.launches import Run, settings_of

    refuse_negative(args, "rounds")
    every, recipes = settings_of(args.set or [], "every training"), {}
    flags = [every | settings_of(args.set_labels or [], "labels"), every]  # on labels, and on taught pairs
    for tower in ("bi_encoder", "cross_encoder"):
        recipes[tower] = getattr(args, tower)
        towers = [parser_of(*TRAIN_ARGUMENTS).read_recipe(recipe).get("tower", ModelArguments.tower)
                  for recipe in recipes[tower]]  # fmt: skip
        if towers != [tower, tower]:
            raise InputError(f"--{tower} takes two recipes that train a {tower}, got {' '.join(recipes[tower])}.")
    written = {
        key: read_yaml(value, "--set_pairs") for key, _, value in (p.partition("=") for p in args.set_pairs or [])
    }
    pairs = parser_of(PairArguments).read_mapping(written, "--set_pairs")
    PairArguments(**pairs)  # refuses a combination
    output, steps = Path(args.output), []

    def train(tower: str, round_: int, corpus: str, taught: bool = False, **more) -> str:
        """Adds the training of a tower, and gives back its folder."""
        method = f"{tower} round_{round_}{' taught' * taught}"
        run = Run(method, recipes[tower][taught], (corpus,), args.seed, flags[taught] | more)
        folder = output / "-".join([*method.split(), str(args.seed)])
        steps.append(Step(folder, run.job(folder, args.data_dir, resume_from_checkpoint="auto"), run))
        return str(folder)

    def mine(student: str, round_: int, finder: str, teacher: str) -> str:
        """Adds the mining for a student, and gives back the corpus that it writes."""
        folder = output / f"{student}-round_{round_}-pairs-{args.seed}"
        made = folder / f"{Path(args.corpus).name}_taught"
        given = {"data_dir": args.data_dir, "validation_pairs": 0, "seed": args.seed, "model": finder}
        job = ["cosent.mine", "--corpus", args.corpus, "--output", str(made), "--teacher", teacher]
        steps.append(Step(folder, job + as_words(pairs | given), made=made))
        return str(made)

    finder = teacher = train("bi_encoder", 0, args.corpus)
    for round_ in range(1, args.rounds + 1):
        for student in ("cross_encoder", "bi_encoder"):
            made = mine(student, round_, finder, teacher)
            taught = train(student, round_, made, taught=True, eval_corpora=[args.corpus])
            teacher = train(student, round_, args.corpus, model_name_or_path=taught)
        finder = teacher
    return steps


ARGUMENTS = (TeachArguments,)

if __name__ == "__main__":
    run_job(main, *ARGUMENTS, shares_work=False)
