"""What a finished run leaves in its folder as `run.json`: the contract between jobs and their readers, torch-free."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cosent.errors import InputError
from cosent.files import write_atomically
from cosent.schema import MANIFEST_NAME, sha256_of_file

RECORD_NAME = "run.json"
UNFINISHED = "UNFINISHED"  # in the folder of a run from its start until its record is written

Metrics = dict[str, dict[str, dict[str, float]]]  # by corpus, split and name


@dataclass(frozen=True)
class Environment:
    """What another machine needs to know to judge a figure."""

    versions: dict[str, str]  # by package
    commit: str | None  # of the checkout, with `+` when it has changes
    device: str
    threads: int

    @property
    def short_commit(self) -> str:
        return (self.commit or "unknown")[:10]


@dataclass(frozen=True)
class Footprint:
    """Size of a model, and the memory that its training took on the first process; None: it was not measured."""

    parameters: int
    trainable_parameters: int
    optimizer_mib: float | None
    peak_mib: float | None  # of the GPU's allocator, or on a CPU of the whole process

    @property
    def trained_share(self) -> float:
        return self.trainable_parameters / self.parameters

    def __str__(self) -> str:
        return (
            f"trained {self.trainable_parameters:,} of {self.parameters:,} parameters ({self.trained_share:.1%}); "
            f"optimizer {self.optimizer_mib:.1f} MiB, peak {self.peak_mib:.0f} MiB"
        )


@dataclass(frozen=True)
class CorpusRecord:
    """A prepared corpus, as it was."""

    folder: str
    manifest_sha256: str

    @classmethod
    def of(cls, folder: Path) -> "CorpusRecord":
        return cls(str(folder), sha256_of_file(folder / MANIFEST_NAME))


@dataclass(frozen=True)
class Written:
    """What a student writes on held-out synonyms: the perplexity of the true ones, and statistics of samples."""

    perplexity: float
    samples: dict[str, float] | None = None


@dataclass(frozen=True)
class PretrainingRecord:
    """What pretraining has read and where its losses ended."""

    text_sha256: dict[str, str]  # by file
    excluded_sentences: int
    excluded_lines_per_pass: int
    tokens: int
    minutes: float
    mlm_loss: float | None = None
    neighbour_loss: float | None = None
    match_loss: float | None = None


@dataclass(kw_only=True)
class RunSummary:
    """What is kept of a run to judge and repeat it. Jobs leave out what they do not have.

    Args:
        recipe: every setting, flags and defaults alike, by name.
        train_seconds: without evaluation before and after.
        thresholds: cosine or logit from which a pair is similar, by corpus.
        processes: None for a run from before they were counted, as is its footprint.
    """

    recipe: dict[str, Any]
    environment: Environment
    train_seconds: float
    processes: int | None = None
    footprint: Footprint | None = None
    corpora: dict[str, CorpusRecord] = field(default_factory=dict)
    train_pairs: int | None = None
    before: Metrics = field(default_factory=dict)
    after: Metrics = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values, the environment among them, as records have always had it."""
        raw = asdict(self)
        return {**raw.pop("environment"), **raw}


@dataclass(kw_only=True)
class RunRecord(RunSummary):
    """The whole record of a run of `train`, `distill` or `pretrain`.

    Args:
        seconds: of the whole job.
        history: what Trainer logged.
        synonyms: pairs with a target to write; of students only, as is what they write.
    """

    seconds: float
    history: list[dict[str, Any]]
    synonyms: int | None = None
    written_before: Written | None = None
    written_after: Written | None = None
    pretraining: PretrainingRecord | None = None

    def save(self, folder: str | Path) -> None:
        """Writes `run.json`, after which the run counts as finished."""
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=2, default=str)
        write_atomically(Path(folder, RECORD_NAME), text + "\n")
        Path(folder, UNFINISHED).unlink(missing_ok=True)


def read_record(folder: str | Path) -> RunRecord | None:
    """Reads the record of a model folder; None for a model that none of our runs has made.

    Raises:
        InputError: the file is none that this version can read.
    """
    file = Path(folder, RECORD_NAME)
    if not file.is_file():
        return None
    with readable_by_this_version(file):
        raw = current_form(json.loads(file.read_text(encoding="utf-8")))
        return RunRecord(
            **summary_fields(raw),
            **{name: raw[name] for name in ("seconds", "history")},
            synonyms=raw.get("synonyms"),
            written_before=optional(Written, raw.get("written_before")),
            written_after=optional(Written, raw.get("written_after")),
            pretraining=optional(PretrainingRecord, raw.get("pretraining")),
        )


@contextmanager
def readable_by_this_version(file: Path) -> Iterator[None]:
    """Turns what goes wrong while a record is read into an error that says whose fault it is.

    Raises:
        InputError: always when the block fails.
    """
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{file} is not the result of a run that this version of cosent can read ({type(error).__name__}: {error})."
            " Another version wrote it, or something else did. Read it with that version, or remove it and run again."
        ) from error


def summary_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of `RunSummary` out of a record in its current form; unknown keys are left to later versions."""
    return {
        "recipe": raw["recipe"],
        "environment": Environment(**{f.name: raw[f.name] for f in fields(Environment)}),
        "train_seconds": raw["train_seconds"],
        "processes": raw.get("processes"),
        "footprint": optional(Footprint, raw.get("footprint")),
        "corpora": {name: CorpusRecord(**corpus) for name, corpus in raw["corpora"].items()},
        "train_pairs": raw.get("train_pairs"),
        "before": raw["before"],
        "after": raw["after"],
        "thresholds": raw.get("thresholds", {}),
    }


def optional(cls: type, given: dict | None):
    """An instance of a dataclass from its fields by name, or None."""
    return None if given is None else cls(**given)


def current_form(raw: dict[str, Any]) -> dict[str, Any]:
    """A record as it is written now, from one of version 0.1 before 2026-11-22: other shapes, the same numbers."""
    raw = raw | {"recipe": current_settings(raw["recipe"])}
    if "text_sha256" in raw:  # pretraining, one level up
        raw |= {"corpora": {}, "before": {}, "after": {}}
        raw["pretraining"] = {f.name: raw[f.name] for f in fields(PretrainingRecord) if f.name in raw}
        raw["train_seconds"] = 60 * raw["minutes"]
    for moment in ("before", "after"):
        report = raw.get(moment, {})
        if "spearman" in report:  # a student's: Spearman by corpus and split, and next to it what it writes
            raw[moment] = {corpus: {split: {"spearman": value} for split, value in splits.items()}
                           for corpus, splits in report["spearman"].items()}  # fmt: skip
            if "perplexity" in report:
                raw[f"written_{moment}"] = {key: report.get(key) for key in ("perplexity", "samples")}
    if "parameters" in raw:
        sizes = dict.fromkeys(("parameters", "trainable_parameters"), raw["parameters"])
        raw["footprint"] = sizes | {"optimizer_mib": None, "peak_mib": None}
    return raw


def current_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings under their names of now: `no_packing: false` was what `packing: true` is."""
    renamed = {f"no_{name}": name for name in ("packing", "generation")}
    return {renamed.get(key, key): not value if key in renamed else value for key, value in settings.items()}
