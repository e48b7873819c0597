"""Results of a study: one per run, collected with the published numbers."""

import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from cosent.errors import InputError, write_atomically
from cosent.run_queries import QUERIES_NAME, Queries, read_queries
from cosent.run_record import (
    RunRecord,
    RunSummary,
    current_form,
    current_settings,
    readable_by_this_version,
    summary_fields,
)
from cosent.run_scores import Scores, read_scores
from cosent.studies.grid import TUNING, Tried, points
from cosent.studies.method import Method
from cosent.studies.published import Published, published

STUDY_NAME = "study.yaml"


@dataclass(frozen=True)
class Speed:
    """Pairs per second by Trainer's own clock; None if not measured."""

    train_pairs_per_second: float | None = None  # without evaluations
    score_pairs_per_second: float | None = None

    @classmethod
    def of(cls, record: RunRecord) -> "Speed":
        seconds, pairs, epochs = 0.0, 0.0, 0.0
        for entry in record.history:
            epochs = max(epochs, entry.get("epoch", 0.0))
            for key in entry:
                if re.fullmatch(r"eval_(.+_)?runtime", key):
                    seconds += entry[key]
                    pairs += entry[key] * entry[key.replace("runtime", "samples_per_second")]
        training = record.train_seconds - seconds
        trained = None
        if record.train_pairs is not None and training > 0:
            trained = epochs * record.train_pairs / training
        return cls(trained, pairs / seconds if seconds else None)


@dataclass(kw_only=True)
class Result(RunSummary):
    """Result of a finished run of a study: the summary of its record, and its place in the study.

    Args:
        file: path of the result; the scores are next to it.
        trained_on: value of `--corpus`.
        flags: flags of the study and of the variant.
        validation_curve: (epoch, validation Spearman), in the order of training.
    """

    file: Path
    method: Method
    trained_on: str
    seed: int
    flags: dict[str, Any]
    speed: Speed
    validation_curve: list[tuple[float, float]]

    @classmethod
    def read(cls, file: Path) -> "Result":
        """Reads a kept result.

        Raises:
            InputError: the file is not one that this version can read.
        """
        with readable_by_this_version(file):
            raw = current_form(json.loads(file.read_text(encoding="utf-8")))
            summary, study = summary_fields(raw), raw["study"]
            tower = summary["recipe"].get("tower", "bi_encoder")
            named = isinstance(study["method"], str)
            return cls(
                **summary,
                file=file,
                method=Method.from_name(study["method"], tower) if named else Method(**study["method"]),
                trained_on=study["corpus"],
                seed=study["seed"],
                flags=current_settings(study["flags"]),
                speed=Speed(**raw["speed"]),
                validation_curve=[(epoch, spearman) for epoch, spearman in raw["validation_curve"]],
            )

    def to_json(self) -> dict[str, Any]:
        raw = super().to_json()
        del raw["file"]
        asked = {key: raw.pop(key) for key in ("method", "seed", "flags")}
        return {"study": asked | {"corpus": raw.pop("trained_on")}, **raw}

    def save(self) -> None:
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=1, default=str)
        write_atomically(self.file, text + "\n")

    @cached_property
    def scores(self) -> Scores:
        """Test scores by corpus; empty for a run whose scores were not kept."""
        file = self.file.with_suffix(".npz")
        return read_scores(file) if file.is_file() else {}

    @property
    def files(self) -> list[Path]:
        """What belongs to this result on disk, the result itself last."""
        parts = (self.file.with_suffix(".npz"), self.file.with_suffix(f".{QUERIES_NAME}"), self.file)
        return [part for part in parts if part.is_file()]

    @cached_property
    def queries(self) -> Queries:
        """Retrieval metrics of the test queries by corpus; empty for a run that measured none."""
        return read_queries(self.file.with_suffix(f".{QUERIES_NAME}"))

    @property
    def tested_on(self) -> list[str]:
        return [corpus for corpus, splits in self.after.items() if "test" in splits]

    def test(self, corpus: str, metric: str = "spearman", moment: str = "after") -> float | None:
        """A test metric; None if it was not measured or is undefined."""
        metrics = self.before if moment == "before" else self.after
        value = metrics.get(corpus, {}).get("test", {}).get(metric)
        return value if value is not None and math.isfinite(value) else None

    @property
    def first_epoch(self) -> float | None:
        """Validation Spearman at the end of the first epoch; None if it was not measured or is undefined."""
        value = next((value for epoch, value in self.validation_curve if epoch >= 1), None)
        return value if value is not None and math.isfinite(value) else None

    @property
    def best_validation(self) -> float | None:
        """Highest validation Spearman; None if it was never measured or is undefined."""
        return max((value for _, value in self.validation_curve if math.isfinite(value)), default=None)

    @property
    def epochs_to_90(self) -> float | None:
        """Epochs until an evaluation first reached 90% of the best validation Spearman; None unless that is above 0."""
        best = self.best_validation
        if best is None or best <= 0:
            return None
        return next(epoch for epoch, value in self.validation_curve if value >= 0.9 * best)


@dataclass(frozen=True)
class Study:
    """All results of a folder.

    Args:
        name: name of the folder; the part after a `-` names the flags of a trial.
        results: finished runs, in the order of the study, then by seed.
        missing: runs of the study without a result.
        published: published tables for this study.
        tune: values of the flags that are chosen on validation.
        tried: what the grid found, by method and training corpus.
    """

    name: str
    folder: Path
    results: list[Result]
    missing: list[str]
    published: list[Published]
    tune: dict[str, list]
    tried: dict[tuple[Method, str], Tried]

    @cached_property
    def crosses(self) -> bool:
        """Whether a method was tested on the same corpus after training on different ones in different runs."""
        trained: dict[tuple[Method, str], set[str]] = {}
        for result in self.results:
            for corpus in result.tested_on:
                trained.setdefault((result.method, corpus), set()).add(result.trained_on)
        return any(len(corpora) > 1 for corpora in trained.values())

    def row_of(self, result: Result) -> str:
        name = result.method.name
        return f"{name}, trained on {result.trained_on}" if self.crosses else name

    @cached_property
    def prepared_anew(self) -> dict[str, dict[str, list[str]]]:
        """Results by the manifest hash of their data, for every folder of a corpus that was prepared more than once."""
        hashes: dict[str, dict[str, list[str]]] = {}
        for result in self.results:
            for corpus in result.corpora.values():
                versions = hashes.setdefault(corpus.folder, {})
                versions.setdefault(corpus.manifest_sha256[:10], []).append(result.file.stem)
        return {folder: versions for folder, versions in hashes.items() if len(versions) > 1}

    @cached_property
    def rows(self) -> dict[str, list[Result]]:
        """Results by row of a table: a method, if needed with its training corpus."""
        rows: dict[str, list[Result]] = {}
        for result in self.results:
            rows.setdefault(self.row_of(result), []).append(result)
        return rows

    @cached_property
    def corpora(self) -> list[str]:
        """Corpora that were tested on, in order of appearance."""
        return list(dict.fromkeys(corpus for result in self.results for corpus in result.tested_on))

    def cell(self, row: str, corpus: str) -> list[Result]:
        return [result for result in self.rows[row] if corpus in result.tested_on]

    def tables(self, measure: str) -> list[Published]:
        return [table for table in self.published if table.measure == measure]

    def overlap(self, corpus: str) -> float | None:
        """Spearman of the character overlap of the test pairs, which needs no model, from the audit in the folder."""
        file = self.folder.resolve().parent / "audit" / f"{corpus}.json"
        if not file.is_file():
            return None
        return json.loads(file.read_text(encoding="utf-8"))["splits"]["test"]["overlap_spearman"] / 100


def read_results(folder: str | Path) -> Study:
    """Reads the results that `cosent.study` left in a folder.

    Raises:
        InputError: no results there, or a file that is not a result.
    """
    folder = Path(folder)
    results = [Result.read(file) for file in sorted(folder.glob("*.json"))]
    if not results:
        raise InputError(f"{folder} holds no results (*.json). Run `cosent study recipes/studies/NAME.yaml`.")
    described = folder / STUDY_NAME
    study = yaml.safe_load(described.read_text(encoding="utf-8")) if described.is_file() else {}
    order = {name: place for place, name in enumerate(study.get("methods", []))}
    results.sort(key=lambda result: (order.get(result.method.name, len(order)), result.method.name, result.seed))
    corpora = [",".join(map(str, c)) if isinstance(c, list) else str(c) for c in study.get("corpora", [])]
    wanted = [(m, c, s) for m in order for c in corpora for s in study.get("seeds", [])]
    there = {(result.method.name, result.trained_on, result.seed) for result in results}
    missing = [f"{method} on {corpus}, seed {seed}" for method, corpus, seed in wanted
               if (method, corpus, seed) not in there]  # fmt: skip
    tune = study.get("tune", {})
    tried = read_grid(folder, tune)
    return Study(folder.resolve().name, folder, results, missing, published(folder), tune, tried)


def read_grid(folder: Path, tune: dict[str, list]) -> dict[tuple[Method, str], Tried]:
    """Reads what every method reached on every corpus at the finished points of the grid of a study."""
    found: dict[tuple[Method, str], Tried] = {}
    for point in points(tune):
        for file in sorted((folder / TUNING / point).glob("*.json")):
            result = Result.read(file)
            tried = found.setdefault((result.method, result.trained_on), Tried())
            tried.validation[point] = result.best_validation
    return found
