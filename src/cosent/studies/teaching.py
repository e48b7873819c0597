"""Steps by which two towers teach each other, each a job of its own.

A round: the pairs that one tower labels teach the other, which then learns from the labels and teaches the first one.
"""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from cosent.cli import as_words
from cosent.data.manifest import MANIFEST_NAME
from cosent.errors import InputError, write_atomically
from cosent.studies.definition import Run
from cosent.studies.method import Method
from cosent.studies.runner import follow, keep

DONE = "done.json"  # in the folder of a finished step: its job, and the data


@dataclass(frozen=True)
class Step:
    """A job in a folder.

    Args:
        job: its module and its flags.
        data: SHA-256 of the manifest of the corpus with labels.
        run: what a training is in the results; None for mining.
        made: the corpus that mining writes.
    """

    folder: Path
    job: list[str]
    data: str
    run: Run | None = None
    made: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether the step was done.

        Raises:
            InputError: it was, with other flags or data.
        """
        file = self.folder / DONE
        if not file.is_file():
            return False
        before = json.loads(file.read_text(encoding="utf-8"))
        if before != self.note:
            earlier, now = [w for w in before if w not in self.note], [w for w in self.note if w not in before]
            raise InputError(
                f"{self.folder} was made with other flags or data: {' '.join(earlier)}, now {' '.join(now)}. Name "
                "another --output, or remove the folders from this one on."
            )
        return True

    @property
    def note(self) -> list[str]:
        """What `DONE` holds of this step."""
        return [*self.job, f"{MANIFEST_NAME}={self.data}"]

    def execute(self, corpus: str, results: Path, accelerate_config: str, threads: int) -> str | None:
        """Runs the job, and keeps the result of a training; returns the reason of a failure, or None."""
        if self.made is not None:  # complete, but by a job that was killed before it could say with which flags
            shutil.rmtree(self.made, ignore_errors=True)
        error = follow(self.job, self.folder, accelerate_config, threads)
        if error is None:
            if self.run is not None:
                keep(self.run, self.folder, results / f"{self.folder.name}.json", corpus)
            write_atomically(self.folder / DONE, json.dumps(self.note, ensure_ascii=False, indent=1))
        return error


@dataclass(frozen=True)
class Course:
    """What the steps of a job have in common.

    Args:
        data: SHA-256 of the manifest of the corpus.
        recipes: recipes for labels, and for taught pairs, by tower.
        encoders: the encoder that each tower's recipe for labels starts from.
        flags: flags of the trainings on labels, and on taught pairs.
        shares: flags of mining.
        with_labels: whether a student reads taught pairs and labels in turns, and not one after the other.
    """

    corpus: str
    data_dir: str
    data: str
    output: Path
    recipes: dict[str, tuple[str, str]]
    encoders: dict[str, str]
    flags: tuple[dict, dict] = field(default=({}, {}))
    shares: dict = field(default_factory=dict)
    with_labels: bool = False

    def train(self, tower: str, round_: int, seed: int, corpora: list[str], variant: str = "", **more) -> Step:
        """Training of a tower; `more` are further flags."""
        on_taught = corpora != [self.corpus]
        method = Method(tower, f"round_{round_}", variant, names_tower=True)
        folder = self.output / "-".join([*method.parts, str(seed)])
        recipe, flags = self.recipes[tower][on_taught], self.flags[on_taught] | more
        if on_taught:
            flags = flags | {"eval_corpora": [self.corpus]}
        run = Run(method, recipe, tuple(corpora), seed, flags)
        job = ["cosent.train", "--config", recipe, "--corpus", *corpora, "--data_dir", self.data_dir]
        job += ["--output_dir", str(folder), "--resume_from_checkpoint", "auto", "--seed", str(seed)]
        job += as_words({"disable_tqdm": True, "save_total_limit": 1} | flags)
        return Step(folder, job, self.data, run)

    def mine(self, student: str, round_: int, seed: int, finder: str, teachers: list[str]) -> Step:
        """Mining for a student."""
        folder = self.output / f"{student}-round_{round_}-pairs-{seed}"
        made = folder / f"{Path(self.corpus).name}_taught"
        flags = {"data_dir": self.data_dir, "validation_pairs": 0, "seed": seed, "model": finder, "teacher": teachers}
        job = ["cosent.mine", "--corpus", self.corpus, "--output", str(made), *as_words(flags | self.shares)]
        return Step(folder, job, self.data, made=made)

    def lesson(self, student: str, round_: int, seed: int, pairs: str) -> list[Step]:
        """Trainings of a student, whose last one ends with its model."""
        if self.with_labels:
            return [self.train(student, round_, seed, [pairs, self.corpus])]
        taught = self.train(student, round_, seed, [pairs], "taught")
        start = {"model_name_or_path": str(taught.folder)}
        return [taught, self.train(student, round_, seed, [self.corpus], **start)]

    def steps(
        self, order: list[str], rounds: int, seeds: list[int], given: list[str], ensemble: bool, alone: bool
    ) -> list[Step]:
        """All steps in order, each after those whose models or pairs it reads.

        Args:
            order: the two towers; the first one teaches first.
            given: its models, where they are there already.
            ensemble: whether the models of all seeds teach together, and not each its own student.
            alone: whether the second tower is trained without a teacher too.
        """
        first, second = order
        found = []
        teachers = {seed: given for seed in seeds}
        if not given:
            found = [self.train(first, 0, seed, [self.corpus]) for seed in seeds]
            teachers = {seed: [str(step.folder)] for seed, step in zip(seeds, found, strict=True)}
        if alone:
            found += [self.train(second, 0, seed, [self.corpus]) for seed in seeds]
        finders = {seed: self.encoders["bi_encoder"] for seed in seeds}
        tower = first
        for round_, student in ((number, student) for number in range(1, rounds + 1) for student in (second, first)):
            if tower == "bi_encoder":
                finders = {seed: models[0] for seed, models in teachers.items()}
            if ensemble:
                everyone = dict.fromkeys(model for seed in seeds for model in teachers[seed])
                teachers = dict.fromkeys(seeds, list(everyone))
            mined = {
                s: self.mine(student, round_, s, finders[s], teachers[s]) for s in seeds[: 1 if ensemble else None]
            }
            pairs = {seed: str(mined.get(seed, mined[seeds[0]]).made) for seed in seeds}
            lessons = {seed: self.lesson(student, round_, seed, pairs[seed]) for seed in seeds}
            found += [*mined.values(), *(step for lesson in lessons.values() for step in lesson)]
            teachers, tower = {seed: [str(lesson[-1].folder)] for seed, lesson in lessons.items()}, student
        return found
