"""Record of a run: `run.json`, and the scores of pairs and queries; imports no torch."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from cosent.atomic import UNFINISHED, model_files, seal, sha256_of_file, write_atomically
from cosent.data.corpus import MANIFEST_NAME, Manifest
from cosent.encoders import local
from cosent.errors import reading, writing

RECORD_NAME = "run.json"
SCORES_NAME = "scores.npz"
QUERIES_NAME = "queries.npz"
OVERLAP = "overlap"  # of characters: a floor of Spearman, in records
OTHER_VERSION = "Remove it if another version of cosent wrote it, or copy it again."

Metrics = dict[str, dict[str, dict[str, float]]]  # by corpus, split and name
Intervals = dict[str, dict[str, dict[str, tuple[float, float]]]]  # likewise, read back as lists
Changes = dict[str, dict[str, dict[str, tuple[float, float, float]]]]  # likewise: difference, and its interval
Scores = dict[str, dict[str, dict[str, np.ndarray]]]  # by corpus, split and name; each array of shape (pairs,)


@dataclass(frozen=True)
class Environment:
    """Software and hardware that a run was measured on."""

    versions: dict[str, str]  # by package
    commit: str | None  # of the clone, with `+` when its code has changes
    device: str
    threads: int
    source_sha256: str | None = None  # of the package's Python files

    @property
    def short_commit(self) -> str:
        return shortened(self.commit)


def shortened(commit: str | None) -> str:
    """A commit as tables show it, with the `+` of a changed checkout."""
    return (commit or "unknown")[:10] + "+" * str(commit).endswith("+")


@dataclass(frozen=True)
class Footprint:
    """Size of a model, and the memory of its training on the first process; None where not measured."""

    parameters: int
    trainable_parameters: int
    peak_mib: float | None  # of the GPU's allocator, or of the complete process on a CPU

    @property
    def trained_share(self) -> float:
        return self.trainable_parameters / self.parameters

    def __str__(self) -> str:
        return (
            f"trained {self.trainable_parameters:,} of {self.parameters:,} parameters ({self.trained_share:.1%}); "
            f"peak memory {self.peak_mib:.0f} MiB"
        )


@dataclass(frozen=True)
class CorpusRecord:
    """Identity of a prepared corpus at the time of the run."""

    folder: str
    manifest_sha256: str

    @classmethod
    def of(cls, folder: Path) -> "CorpusRecord":
        return cls(str(folder), sha256_of_file(folder / MANIFEST_NAME))


@dataclass(kw_only=True)
class RunRecord:
    """Record of a run of `train`, `distill` or `merge`, or of pretraining; jobs leave out fields that do not apply.

    Args:
        recipe: every setting by name, flags and defaults alike.
        train_seconds: without evaluation before and after.
        files: SHA-256 of the files of text, and of a loss of one's own, by name.
        start_sha256: SHA-256 of the weights that training started from, by file.
        learnt: numbers that a loss of one's own learnt, its attribute `learnt`, by corpus and name.
        seconds: duration of the job.
        history: the log of Trainer.
        prompts: texts in front of the first and the second sentence of every pair.
        intervals: 95% bootstrap intervals of the retrieval metrics in `after`.
        synonyms: number of pairs with a target to generate; only for students.
        pretraining: hashes of its text, and final losses; only of pretraining.
        leaks: pairs of a held-out split that training has seen, by corpus and split in words.
        floors: Spearman of character overlap, and of the shipped model `similar`, as `overlap` and `similar`; of a
            student's `teacher` too.
        changes: Spearman and Recall@10 after training minus before, and `overlap` and `similar`, Spearman minus that
            floor, each with its paired 95% interval.
        terms: what the publishers of the corpora allow that the model, its start and its teacher were trained on, by
            corpus; without those that are not known.
        warnings: metrics that did not improve, and splits that are too small to judge a model by, in words.
    """

    recipe: dict[str, Any]
    environment: Environment
    train_seconds: float
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    processes: int | None = None
    footprint: Footprint | None = None
    corpora: dict[str, CorpusRecord] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    start_sha256: dict[str, str] = field(default_factory=dict)
    learnt: dict[str, dict[str, float]] = field(default_factory=dict)
    train_pairs: int | None = None
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
    prompts: tuple[str, str] = ("", "")
    intervals: Intervals = field(default_factory=dict)
    synonyms: int | None = None
    pretraining: dict[str, Any] | None = None
    leaks: dict[str, int] = field(default_factory=dict)
    floors: Metrics = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """The record from plain values; unknown keys are ignored."""
        values, nested = fields_in(cls, raw), {"environment": Environment, "footprint": Footprint}
        for name, kind in nested.items():
            if values.get(name) is not None:
                values[name] = kind(**fields_in(kind, values[name]))
        values["corpora"] = {name: CorpusRecord(**corpus) for name, corpus in values.get("corpora", {}).items()}
        values["prompts"] = tuple(values.get("prompts", ("", "")))
        return cls(**values)

    def save(self, folder: str | Path) -> None:
        """Writes `run.json` and seals the folder, after which the run counts as finished."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2, default=str)
        write_atomically(Path(folder, RECORD_NAME), text + "\n")
        seal(folder, model_files(Path(folder)))
        Path(folder, UNFINISHED).unlink(missing_ok=True)


def fields_in(kind: type, raw: dict[str, Any]) -> dict[str, Any]:
    """The plain values that are fields of a dataclass."""
    return {field.name: raw[field.name] for field in fields(kind) if field.name in raw}


def read_record(folder: str | Path) -> RunRecord | None:
    """Reads the record of a model folder; None for a model that was not made by a run of ours."""
    file = local(folder) / RECORD_NAME
    if not file.is_file():
        return None
    with reading(file, advice=OTHER_VERSION):
        return RunRecord.from_json(json.loads(file.read_text(encoding="utf-8")))


def record_of_start(model: str) -> RunRecord | None:
    """The record of a model, or of the run whose checkpoint it is."""
    folder = local(model).expanduser()
    record = read_record(folder)
    return read_record(folder.parent) if record is None and folder.name.startswith("checkpoint-") else record


def terms_of(models: Iterable[str | None], manifests: Iterable[Manifest] = ()) -> dict[str, str]:
    """Known terms of the corpora that a model of these models and corpora is made of, see `RunRecord.terms`."""
    records = [record_of_start(model) for model in models if model]
    inherited = {name: terms for record in records if record for name, terms in record.terms.items()}
    return inherited | {manifest.name: manifest.terms for manifest in manifests if manifest.terms}


def lineage(model: str) -> list[RunRecord]:
    """Records of the run that made a model, of the run that made its start, and so on, as far as they are there."""
    records: dict[Path, RunRecord] = {}
    start: str | None = model
    while start and local(start).resolve() not in records and (record := record_of_start(start)) is not None:
        records[local(start).resolve()] = record
        start = record.recipe.get("model_name_or_path")
    return list(records.values())


def trained_on_pairs(runs: list[RunRecord]) -> bool:
    """Whether the last run of a `lineage` trained on pairs, and was no pretraining."""
    return bool(runs) and runs[0].pretraining is None


def save_scores(file: str | Path, scores: Scores) -> None:
    """Writes arrays by corpus, split and name (`labels`, `before`, `after`, `groups`) to a `.npz`."""
    arrays: dict[str, Any] = {}
    for corpus, splits in scores.items():
        for split, named in splits.items():
            arrays |= {f"{corpus}/{split}/{name}": np.asarray(values) for name, values in named.items()}
    with writing(file):
        np.savez_compressed(file, **arrays)


def read_scores(file: str | Path) -> Scores:
    """Reads what `save_scores` wrote."""
    scores: Scores = {}
    with reading(file), np.load(file) as arrays:
        for key, values in arrays.items():
            corpus, split, name = key.rsplit("/", 2)
            scores.setdefault(corpus, {}).setdefault(split, {})[name] = values
    return scores


@dataclass
class QueryMetrics:
    """Retrieval metrics of the queries of a split.

    Args:
        task: `RetrievalTask.digest`; only runs of the same task can be compared query by query.
        moments: metrics by moment (`before` and `after` training) and name, each of shape `(queries,)`.
    """

    task: str
    moments: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


Queries = dict[str, dict[str, QueryMetrics]]  # by corpus and split


def save_queries(file: str | Path, queries: Queries) -> None:
    """Writes the metrics of all queries, rounded to float32, to a compressed `.npz`."""
    arrays: dict[str, Any] = {}
    for corpus, splits in queries.items():
        for split, metrics in splits.items():
            for moment, named in metrics.moments.items():
                for name, values in named.items():
                    arrays[f"{corpus}/{split}/{metrics.task}/{moment}/{name}"] = values.astype(np.float32)
    with writing(file):
        np.savez_compressed(file, **arrays)


def read_queries(file: str | Path) -> Queries:
    """Reads what `save_queries` wrote; nothing if there is no such file."""
    queries: Queries = {}
    if Path(file).is_file():
        with reading(file), np.load(file) as arrays:
            for key, values in arrays.items():
                corpus, split, task, moment, name = key.rsplit("/", 4)
                metrics = queries.setdefault(corpus, {}).setdefault(split, QueryMetrics(task))
                metrics.moments.setdefault(moment, {})[name] = values
    return queries
