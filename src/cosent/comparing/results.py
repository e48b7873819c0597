"""Results of a study: its definition and a line per run in `study.jsonl`, test scores in `scores.npz` next to it.

Scores serve to compare two runs pair by pair. Rounding them would not do: cosines of an untrained encoder are so close
that float16 leaves 21 values of 1,352 and moves their Spearman by 0.001. So the rank of every row is stored exactly, in
two bytes, with at most `KNOTS` quantiles between which values are interpolated: rank statistics equal the original
ones to the last bit. Of the retrieval metrics of queries, the one that is compared is kept: Recall@10.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np

from cosent.atomic import partial_file, write_atomically
from cosent.errors import reading
from cosent.evaluation.calibration import Calibration
from cosent.record import OTHER_VERSION, QueryMetrics, RunRecord

STUDY_NAME, ARRAYS_NAME = "study.jsonl", "scores.npz"
KNOTS = 65
STORED, COMPARED = ("labels", "before", "after", "groups"), "recall_at_10"  # of the scores, and of queries

Arrays = dict[str, np.ndarray]  # by name


@dataclass(kw_only=True)
class Result(RunRecord):
    """Record of a run of a study, without its log, and its place in the study.

    Args:
        method: recipe and variant, e.g. `cosent_mini scale_5`, after the tower where two recipes have one name.
        corpus: value of `--corpus`, joined by commas.
        point: of the grid, e.g. `learning_rate=0.0005`; empty for a run of the study itself.
        settings: what recipe, study and variant asked for.
        calibrations: maps from scores to probabilities, by corpus.
        validation_curve: (epoch, validation Spearman), in the order of training.
        scores: test scores by corpus and name (`labels`, `before`, `after`), each `(pairs,)`; `groups` are those of
            pairs that share a sentence, which an interval draws together.
        queries: retrieval metrics of the test queries by corpus.
    """

    method: str
    corpus: str
    seed: int
    point: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    validation_curve: list[tuple[float, float]] = field(default_factory=list)
    scores: dict[str, Arrays] = field(default_factory=dict, compare=False)
    queries: dict[str, QueryMetrics] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return run_name(self.method, self.corpus.split(","), self.seed)

    @property
    def tested_on(self) -> list[str]:
        return [corpus for corpus, splits in self.after.items() if "test" in splits]

    def test(self, corpus: str, metric: str = "spearman", moment: str = "after") -> float | None:
        """A test metric; None if it was not measured or is undefined."""
        metrics = self.before if moment == "before" else self.after
        value = metrics.get(corpus, {}).get("test", {}).get(metric)
        return value if value is not None and math.isfinite(value) else None

    @property
    def best_validation(self) -> float | None:
        """Highest validation Spearman; None if it was never measured or is undefined."""
        return max((value for _, value in self.validation_curve if math.isfinite(value)), default=None)

    def to_json(self, arrays: Arrays) -> dict[str, Any]:
        """Plain values; arrays go to `arrays` under a hash of their content, which stands for them."""

        def stored(parts: Arrays) -> str:
            key = hashlib.sha256(b"".join(part.tobytes() for part in parts.values())).hexdigest()[:12]
            arrays.update({key + suffix: part for suffix, part in parts.items()})
            return key

        raw = asdict(replace(self, scores={}, queries={}, intervals={}, history=[]))
        raw["scores"] = {
            corpus: {name: stored(pack(values)) for name, values in named.items() if name in STORED}
            for corpus, named in self.scores.items()
        }
        for corpus, queries in self.queries.items():
            moments = {
                moment: {COMPARED: stored({"": named[COMPARED].astype(np.float32)})}
                for moment, named in queries.moments.items()
            }
            raw["queries"][corpus] = {"task": queries.task, "moments": moments}
        return {key: value for key, value in raw.items() if key == "recipe" or value not in (None, "", {}, [])}

    @classmethod
    def from_stored(cls, raw: dict[str, Any], arrays: Arrays) -> Self:
        """Inverse of `to_json`."""
        result = cls.from_json({key: value for key, value in raw.items() if key not in ("scores", "queries")})
        result.calibrations = {name: Calibration(**values) for name, values in raw.get("calibrations", {}).items()}
        result.validation_curve = [(epoch, value) for epoch, value in result.validation_curve]
        for corpus, named in raw.get("scores", {}).items():
            result.scores[corpus] = {
                name: unpack(arrays[f"{key}/ranks"], arrays[f"{key}/knots"]) for name, key in named.items()
            }
        for corpus, queries in raw.get("queries", {}).items():
            moments = {
                moment: {name: arrays[key] for name, key in named.items()}
                for moment, named in queries["moments"].items()
            }
            result.queries[corpus] = QueryMetrics(queries["task"], moments)
        return result


def pack(values: np.ndarray) -> Arrays:
    """Ranks of values `(pairs,)`, 0 for the lowest and equal for equal ones, and the quantiles to restore them from.

    Returns:
        `/ranks`, `(pairs,)`, of the smallest unsigned integers that hold them; `/knots`, float64 quantiles of the
        distinct values, at most `KNOTS` and evenly spaced by rank: up to 65 distinct values (labels) are kept exactly.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"{np.sum(~np.isfinite(values))} scores are not finite. The training probably diverged.")
    distinct, ranks = np.unique(values, return_inverse=True)
    places = np.linspace(0, len(distinct) - 1, min(len(distinct), KNOTS)).round().astype(int)
    return {"/ranks": ranks.astype(np.min_scalar_type(len(distinct) - 1)), "/knots": distinct[places]}


def unpack(ranks: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Restores float64 values `(pairs,)` from packed ones, strictly rising with their rank."""
    distinct = int(ranks.max()) + 1
    places = np.linspace(0, distinct - 1, len(knots)).round()
    return np.interp(np.arange(distinct), places, knots)[ranks]


@dataclass(frozen=True)
class Study:
    """All results of a folder.

    Args:
        name: name of the folder; the part after a `-` names the flags of a trial.
        results: finished runs, in the order of the study, then by seed.
        definition: `methods`, `corpora`, `seeds` and, for a grid, `tune` of the study.
        trials: finished runs of the grid.
    """

    name: str
    results: list[Result]
    definition: dict[str, Any] = field(default_factory=dict)
    trials: list[Result] = field(default_factory=list)

    @property
    def tune(self) -> dict[str, list]:
        """Values of the flags that are chosen on validation."""
        return self.definition.get("tune", {})

    @cached_property
    def tried(self) -> dict[tuple[str, str], dict[str, float | None]]:
        """Best validation Spearman by method, training corpus and finished point of the grid."""
        reached: dict[tuple[str, str], dict[str, float | None]] = {}
        for point, trial in product(points(self.tune), self.trials):
            if trial.point == point:
                reached.setdefault((trial.method, trial.corpus), {})[point] = trial.best_validation
        return reached

    @property
    def missing(self) -> list[str]:
        """Runs of the study without a result, in words."""
        runs = product(*(self.definition.get(key, []) for key in ("methods", "corpora", "seeds")))
        finished = {(result.method, result.corpus, result.seed) for result in self.results}
        return [f"{run[0]} on {run[1]}, seed {run[2]}" for run in runs if run not in finished]

    @cached_property
    def rows(self) -> dict[str, list[Result]]:
        """Results by row of a table: a method, with its training corpus if several trainings were tested on one."""
        places = {(result.method, corpus, result.corpus) for result in self.results for corpus in result.tested_on}
        crosses = len({(method, corpus) for method, corpus, _ in places}) < len(places)
        return grouped(self.results, lambda run: f"{run.method}, trained on {run.corpus}" if crosses else run.method)

    @cached_property
    def corpora(self) -> list[str]:
        """Corpora that were tested on, in order of appearance."""
        return list(dict.fromkeys(corpus for result in self.results for corpus in result.tested_on))

    def cell(self, row: str, corpus: str) -> list[Result]:
        return [result for result in self.rows[row] if corpus in result.tested_on]


def run_name(method: str, corpora: Iterable[str], seed: int) -> str:
    """The name of a run, and of its folder: `cosent_mini-stsb-1`."""
    return "-".join([*method.split(), *(Path(part).name for part in corpora), str(seed)])


def grouped(results: Iterable[Result], name: Callable[[Result], str]) -> dict[str, list[Result]]:
    """Results grouped by an attribute, in order of appearance."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(name(result), []).append(result)
    return groups


def points(tune: dict[str, list]) -> dict[str, dict[str, Any]]:
    """Flags of every combination of the values of the tuned flags, by name; empty without such flags."""
    combined = [dict(zip(tune, values, strict=True)) for values in product(*tune.values())] if tune else []
    return {name_of(flags): flags for flags in combined}


def name_of(flags: dict[str, Any]) -> str:
    """Flags as part of a file's name: `learning_rate=0.0005`; of a path, its last part, and lists with `+`."""
    values = {key: value if isinstance(value, list) else [value] for key, value in flags.items()}
    return "-".join(f"{key}={'+'.join(Path(str(part)).name for part in parts)}" for key, parts in values.items())


def read_results(folder: str | Path) -> Study:
    """Reads what `cosent study` wrote to a folder; a study without results if there is nothing."""
    folder = Path(folder)
    file, arrays = folder / STUDY_NAME, folder / ARRAYS_NAME
    if not file.is_file():
        return Study(folder.resolve().name, [])
    with reading(file, advice=OTHER_VERSION):
        first, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        if first.pop("sha256", None) not in (None, digest_of([first, *lines])):
            raise ValueError("it was damaged or edited")
        stored: Arrays = {}
        if arrays.is_file():
            with reading(arrays, advice=OTHER_VERSION), np.load(arrays) as file_of_arrays:
                stored = dict(file_of_arrays)
        every = [Result.from_stored(line, stored) for line in lines]
    order = {method: place for place, method in enumerate(first.get("methods", []))}
    every.sort(key=lambda result: (order.get(result.method, len(order)), result.method, result.seed))
    results, trials = ([result for result in every if bool(result.point) is tried] for tried in (False, True))
    return Study(folder.resolve().name, results, first, trials)


def save_results(folder: Path, definition: dict[str, Any], results: Iterable[Result]) -> None:
    """Writes the results of a study, each file complete or not at all; arrays that runs share are stored once."""
    arrays: Arrays = {}
    lines = [definition, *(result.to_json(arrays) for result in results)]
    folder.mkdir(parents=True, exist_ok=True)
    with partial_file(folder / ARRAYS_NAME) as part, open(part, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    lines[0] = definition | {"sha256": digest_of(lines)}
    write_atomically(folder / STUDY_NAME, "".join(map(as_line, lines)))


def as_line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"


def digest_of(lines: list[dict[str, Any]]) -> str:
    """SHA-256 of the lines of a study."""
    return hashlib.sha256("".join(map(as_line, lines)).encode()).hexdigest()
