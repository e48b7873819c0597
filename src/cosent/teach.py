"""Let a bi-encoder and a cross-encoder teach each other, in rounds of mining and training.

cosent teach --config recipes/teach/mini.yaml --corpus stsb --output runs/teach

A round: the pairs that one tower labels teach the other, which then learns from the labels and teaches the first one.
Every step is a job of its own in a folder of its own. After a kill, the same command continues. See docs/retrieval.md.
"""

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from cosent.cli import REQUIRED, as_words, option, parser_of, refuse_negative
from cosent.cli import run as run_job
from cosent.errors import InputError, write_atomically
from cosent.inference.arguments import PairArguments

if TYPE_CHECKING:
    from cosent.results import Study
    from cosent.training.launches import Run

DONE = "done.json"  # in the folder of a finished step: its job, and the data
TOWERS = "bi_encoder", "cross_encoder"
ALONE = "round_0"  # of either tower: trained on labels alone


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


@dataclass(frozen=True)
class Step:
    """A job, its folder, and the training that it is; mining has the corpus that it writes instead."""

    folder: Path
    job: list[str]
    run: "Run | None" = None
    made: Path | None = None

    def finished(self, data: str) -> bool:
        """Whether the step was done; `data` is the SHA-256 of the manifest of the corpus with labels."""
        if not (self.folder / DONE).is_file():
            return False
        before, now = json.loads((self.folder / DONE).read_text(encoding="utf-8")), [*self.job, f"data={data}"]
        if before != now:
            earlier, later = ([w for w in one if w not in other] for one, other in ((before, now), (now, before)))
            raise InputError(
                f"{self.folder} was made with other flags or data: {' '.join(earlier)}, now {' '.join(later)}. Name "
                "another --output, or remove the folders from this one on."
            )
        return True


def main(args: TeachArguments, pairs: PairArguments) -> int:
    from cosent.data.corpus import load_corpus
    from cosent.results import read_results, read_study_folder, save_results
    from cosent.run import CorpusRecord
    from cosent.training import launches

    steps = steps_of(args, pairs)
    data = CorpusRecord.of(load_corpus(args.corpus, args.data_dir).folder).manifest_sha256
    folder = Path(args.output, "results")
    runs = [step.run for step in steps if step.run is not None]
    definition = {"methods": list(dict.fromkeys(run.method for run in runs)), "corpora": [args.corpus],
                  "seeds": args.seeds}  # fmt: skip
    with launches.study_lock(folder), tqdm(steps, unit="step") as bar:
        for step in bar:
            bar.set_description_str(step.folder.name)
            if step.finished(data):
                continue
            if step.made is not None:  # complete, but by a job that was killed before it could say with which flags
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
            write_atomically(step.folder / DONE, json.dumps([*step.job, f"data={data}"], ensure_ascii=False, indent=1))
    if runs:
        print(teaching_table(read_results(folder)))
        print(f"figures: cosent report {folder}", file=sys.stderr)
    return 0


def steps_of(args: TeachArguments, pairs: PairArguments) -> list[Step]:
    """All steps in order, each after those whose models or pairs it reads."""
    from cosent.data.corpus import load_corpus
    from cosent.encoders import resolve
    from cosent.models.folder import is_cross_encoder
    from cosent.training.arguments import TRAIN_ARGUMENTS, ModelArguments
    from cosent.training.launches import Run, settings_of

    refuse_negative(args, "rounds")
    load_corpus(args.corpus, args.data_dir)
    every = settings_of(args.set or [], "every training")
    flags = [every | settings_of(args.set_labels or [], "labels"), every | settings_of(args.set_taught or [], "taught")]
    recipes = {"bi_encoder": (args.bi_recipe, args.bi_taught), "cross_encoder": (args.cross_recipe, args.cross_taught)}
    for tower, both in recipes.items():
        for recipe, more in zip(both, flags, strict=True):
            values = parser_of(*TRAIN_ARGUMENTS).read_recipe(recipe) | more
            if values.get("tower", ModelArguments.tower) != tower:
                raise InputError(f"{recipe} does not train a {tower}, and was given as a recipe of one.")
    towers = {TOWERS[is_cross_encoder(resolve(model))] for model in args.teacher or []} or {args.start}
    if len(towers) > 1:
        raise InputError(f"--teacher {' '.join(args.teacher or [])} are of both towers. Name models of one.")
    if len(set(args.seeds)) < max(len(args.seeds), 1 + args.ensemble):
        raise InputError(f"--seeds {args.seeds}: each seed once, and several for --ensemble.")

    output, steps = Path(args.output), []

    def train(tower: str, round_: int, seed: int, corpora: list[str], variant: str = "", **more: Any) -> str:
        """Adds the training of a tower, and gives back its folder."""
        taught = corpora != [args.corpus]
        more = flags[taught] | more | ({"eval_corpora": [args.corpus]} if taught else {})
        method = " ".join([tower, f"round_{round_}", *[variant] * bool(variant)])
        run = Run(method, recipes[tower][taught], tuple(corpora), seed, more)
        folder = output / "-".join([*method.split(), str(seed)])
        steps.append(Step(folder, run.job(folder, args.data_dir, resume_from_checkpoint="auto"), run))
        return str(folder)

    def mine(student: str, round_: int, seed: int, finder: str, teachers: list[str]) -> str:
        """Adds the mining for a student, and gives back the corpus that it writes."""
        folder = output / f"{student}-round_{round_}-pairs-{seed}"
        made = folder / f"{Path(args.corpus).name}_taught"
        given = {name: value for name, value in asdict(pairs).items() if value is not None}
        given |= {"data_dir": args.data_dir, "validation_pairs": 0, "seed": seed, "model": finder, "teacher": teachers}
        job = ["cosent.mine", "--corpus", args.corpus, "--output", str(made), *as_words(given)]
        steps.append(Step(folder, job, made=made))
        return str(made)

    def teach(student: str, round_: int, seed: int, made: str) -> str:
        """Adds the trainings of a student, and gives back the folder of the last one."""
        if args.labels == "with":
            return train(student, round_, seed, [made, args.corpus])
        taught = train(student, round_, seed, [made], "taught")
        return train(student, round_, seed, [args.corpus], model_name_or_path=taught)

    first, second = sorted(TOWERS, key=lambda tower: tower not in towers)
    teachers = {seed: args.teacher or [train(first, 0, seed, [args.corpus])] for seed in args.seeds}
    if args.alone:
        for seed in args.seeds:
            train(second, 0, seed, [args.corpus])
    labels = parser_of(*TRAIN_ARGUMENTS).read_recipe(args.bi_recipe) | flags[0]
    finders = dict.fromkeys(args.seeds, labels.get("model_name_or_path", ModelArguments.model_name_or_path))
    teacher = first
    for round_, student in ((number, student) for number in range(1, args.rounds + 1) for student in (second, first)):
        if teacher == "bi_encoder":
            finders = {seed: models[0] for seed, models in teachers.items()}
        if args.ensemble:
            together = list(dict.fromkeys(model for seed in args.seeds for model in teachers[seed]))
            one = args.seeds[0]
            corpora = dict.fromkeys(args.seeds, mine(student, round_, one, finders[one], together))
        else:
            corpora = {seed: mine(student, round_, seed, finders[seed], teachers[seed]) for seed in args.seeds}
        teachers = {seed: [teach(student, round_, seed, corpora[seed])] for seed in args.seeds}
        teacher = student
    return steps


def teaching_table(study: "Study") -> str:
    """Spearman x100 of every model, mean and standard deviation over seeds, and what teaching adds on test.

    Differences are those of the means on seeds that both have, with the interval over rows and seeds; empty without
    a model of that tower that learnt from labels alone.
    """
    from cosent.reporting.comparison import by_seed, compare
    from cosent.reporting.document import Cell, Number, Range, markdown_table, times_100

    def gain(corpus: str, row: str, alone: str) -> str | None:
        runs = by_seed(study, corpus, lambda run: corpus in run.scores)
        found = compare({name: runs[name] for name in (row, alone) if name in runs}, corpus) if row != alone else {}
        if (row, alone) not in found:
            return None
        each, _ = found[row, alone]
        return f"{Number(100 * each.mean, form='+.2f')} ({Range(100 * each.low, 100 * each.high)})"

    header = ["Spearman x100", "validation", "test", *(f"test, minus {tower} {ALONE}" for tower in TOWERS)]
    tables = []
    for corpus in dict.fromkeys(name for run in study.results for name, splits in run.after.items() if splits):
        rows: list[list[Cell]] = []
        for row, every in study.rows.items():
            runs = [run for run in every if corpus in run.after]
            splits = [times_100(run.after[corpus].get(split, {}).get("spearman") for run in runs)
                      for split in ("validation", "test")]  # fmt: skip
            gains = [gain(corpus, row, f"{tower} {ALONE}") for tower in TOWERS]
            rows.append([row, *splits, *gains, len({run.seed for run in runs})])
        tables.append(markdown_table([f"{corpus}, {header[0]}", *header[1:], "seeds"], rows))
    commits = ", ".join(dict.fromkeys(result.environment.short_commit for result in study.results))
    tables.append(f"{study.results[0].environment.device}, commit {commits}.")
    return "\n\n".join(tables)


ARGUMENTS = (TeachArguments, PairArguments)

if __name__ == "__main__":
    run_job(main, *ARGUMENTS, shares_work=False)
