"""Results of a study as a report reads them: runs, their scores, and the published numbers beside them."""

import json
import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from cosent.errors import InputError
from cosent.run_record import Scores, read_scores
from cosent.studies.published import Published, published

STUDY_NAME = "study.yaml"


@dataclass(frozen=True)
class Result:
    """One finished run: the JSON that `cosent.study` kept, and the scores beside it where they were kept too."""

    file: Path
    record: dict

    @cached_property
    def trained_on(self) -> str:
        return self._study.get("corpus") or ",".join(self.record["corpora"])

    @cached_property
    def seed(self) -> int:
        return self.record["recipe"]["seed"]

    @cached_property
    def method(self) -> str:
        """The recipe's name and the variant's; results from before they were recorded have it in their file name."""
        return self._study.get("method") or self.file.stem.removesuffix(f"-{self.trained_on}-{self.seed}")

    @cached_property
    def scores(self) -> Scores:
        """Test scores by corpus; empty for a run whose scores were not kept."""
        file = self.file.with_suffix(".npz")
        return read_scores(file) if file.is_file() else {}

    @cached_property
    def trained_share(self) -> float | None:
        """Share of the weights that was trained, below 1 under LoRA; None for results from before it was kept."""
        kept = self.record.get("footprint")
        return kept["trainable_parameters"] / kept["parameters"] if kept else None

    @property
    def tested_on(self) -> list[str]:
        return [corpus for corpus, splits in self.record["after"].items() if "test" in splits]

    def test(self, corpus: str, metric: str = "spearman", moment: str = "after") -> float | None:
        """A test metric; None where it was not measured or means nothing."""
        value = self.record[moment].get(corpus, {}).get("test", {}).get(metric)
        return value if value is not None and math.isfinite(value) else None

    @property
    def curve(self) -> list[tuple[float, float]]:
        """(epoch, validation Spearman), in the order of training."""
        return [tuple(point) for point in self.record.get("validation_curve", [])]

    @property
    def first_epoch(self) -> float | None:
        """Validation Spearman at the end of the first epoch."""
        return next((value for epoch, value in self.curve if epoch >= 1), None)

    @property
    def epochs_to_90(self) -> float | None:
        """Epochs until an evaluation first reached 90% of the best validation Spearman of the run."""
        if not self.curve:
            return None
        best = max(value for _, value in self.curve)
        return next(epoch for epoch, value in self.curve if value >= 0.9 * best)

    @property
    def _study(self) -> dict:
        return self.record.get("study", {})


@dataclass(frozen=True)
class Study:
    """All results of a folder.

    Args:
        name: of the folder; what stands after a `-` names the flags of a trial.
        results: finished runs, in the order of the study, then by seed.
        missing: runs that the study lists and that have no result.
        published: tables for this study.
    """

    name: str
    folder: Path
    results: list[Result]
    missing: list[str]
    published: list[Published]

    @cached_property
    def crosses(self) -> bool:
        """Whether a method was tested on one corpus after training on several ones, one after the other."""
        trained = {}
        for result in self.results:
            for corpus in result.tested_on:
                trained.setdefault((result.method, corpus), set()).add(result.trained_on)
        return any(len(corpora) > 1 for corpora in trained.values())

    def row_of(self, result: Result) -> str:
        return f"{result.method}, trained on {result.trained_on}" if self.crosses else result.method

    @cached_property
    def rows(self) -> dict[str, list[Result]]:
        """Results by what a row of a table stands for: a method, where needed with what it was trained on."""
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

    def published_rows(self, measure: str, method: str, columns: list[str] | None = None) -> list[list[str]]:
        """Published rows for a method, in the columns of a table of ours."""
        columns = columns or self.corpora
        lines = []
        for table in self.tables(measure):
            for row in table.of(method):
                numbers = [f"{row[c]:.2f}" if c in row else "" for c in columns]
                known = [row[c] for c in columns if c in row]
                mean = f"{statistics.mean(known):.2f}" if len(known) == len(columns) > 1 else ""
                if known:
                    lines.append(
                        [f"published: {row['method']}, {row['encoder']} ({table.source})", *numbers, mean, "1"]
                    )
        return lines

    def overlap(self, corpus: str) -> float | None:
        """Spearman of the character overlap of the test pairs, which needs no model, from the audit kept beside."""
        file = self.folder.resolve().parent / "audit" / f"{corpus}.json"
        if not file.is_file():
            return None
        return json.loads(file.read_text(encoding="utf-8"))["splits"]["test"]["overlap_spearman"] / 100


def read_results(folder: str | Path) -> Study:
    """Reads the results that `cosent.study` left in a folder.

    Raises:
        InputError: no result there, or a file that is none.
    """
    folder = Path(folder)
    results = [read_result(file) for file in sorted(folder.glob("*.json"))]
    if not results:
        raise InputError(f"{folder} holds no results (*.json). Run `python -m cosent.study recipes/studies/NAME.yaml`.")
    described = folder / STUDY_NAME
    study = yaml.safe_load(described.read_text(encoding="utf-8")) if described.is_file() else {}
    order = {method: place for place, method in enumerate(study.get("methods", []))}
    results.sort(key=lambda result: (order.get(result.method, len(order)), result.method, result.seed))
    corpora = [",".join(map(str, c)) if isinstance(c, list) else str(c) for c in study.get("corpora", [])]
    wanted = [(m, c, s) for m in order for c in corpora for s in study.get("seeds", [])]
    there = {(result.method, result.trained_on, result.seed) for result in results}
    missing = [f"{method} on {corpus}, seed {seed}" for method, corpus, seed in wanted
               if (method, corpus, seed) not in there]  # fmt: skip
    return Study(folder.resolve().name, folder, results, missing, published(folder))


def read_result(file: Path) -> Result:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        record["recipe"]["seed"], record["corpora"], record["after"], record["before"], record["train_seconds"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is not the result of a run ({type(error).__name__}: {error}). Take it out of the folder, or run "
            "its study again."
        ) from error
    return Result(file, record)
