"""Read and write `run.json`, the record of a finished run; imports no torch."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cosent.data.manifest import MANIFEST_NAME, sha256_of_file
from cosent.errors import InputError, write_atomically
from cosent.evaluation.calibration import Calibration, DecisionRule, calibration_from

RECORD_NAME = "run.json"
BEFORE, OVERLAP = "before training", "character overlap"  # references of shortfalls
SHORTFALL_METRICS = {"spearman": "Spearman", "recall_at_10": "Recall@10"}
UNFINISHED = "UNFINISHED"  # in the folder of a run from its start until its record is written

Metrics = dict[str, dict[str, dict[str, float]]]  # by corpus, split and name
Intervals = dict[str, dict[str, dict[str, tuple[float, float]]]]  # likewise


@dataclass(frozen=True)
class Environment:
    """Software and hardware that a run was measured on."""

    versions: dict[str, str]  # by package
    commit: str | None  # of the checkout, with `+` when it has changes
    device: str
    threads: int

    @property
    def short_commit(self) -> str:
        return shortened(self.commit)


def shortened(commit: str | None) -> str:
    """A commit as tables show it."""
    return (commit or "unknown")[:10]


@dataclass(frozen=True)
class Footprint:
    """Size of a model, and the memory of its training on the first process; None where not measured."""

    parameters: int
    trainable_parameters: int
    optimizer_mib: float | None
    peak_mib: float | None  # of the GPU's allocator, or of the complete process on a CPU

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
    """Identity of a prepared corpus at the time of the run."""

    folder: str
    manifest_sha256: str

    @classmethod
    def of(cls, folder: Path) -> "CorpusRecord":
        return cls(str(folder), sha256_of_file(folder / MANIFEST_NAME))


def manifest_hashes(corpora: dict[str, CorpusRecord]) -> dict[str, str]:
    return {name: corpus.manifest_sha256 for name, corpus in corpora.items()}


@dataclass(frozen=True)
class Proof:
    """A saved folder, loaded from disk, against the model in memory and the starting model.

    Args:
        reloaded: largest difference from the model in memory, relative to the largest value; 0 for the same bits.
        moved: mean cosine distance of the vectors from those of the starting model, or mean absolute change of the
            scores of a cross-encoder; None where the starting model is not known.
        compared: how many vectors or scores.
        what: `vectors` or `scores`.
    """

    reloaded: float
    moved: float | None
    compared: int
    what: str

    def __str__(self) -> str:
        moved = "" if self.moved is None else f"; moved {self.moved:.2g} from the start"
        return f"{self.compared} {self.what} of the saved folder: reloaded equal to {self.reloaded:.0e}{moved}"


@dataclass(frozen=True)
class Shortfall:
    """A metric that a run did not clearly raise above a reference, on one split.

    Args:
        metric: `spearman` or `recall_at_10`.
        value: the metric after training.
        than: what the reference is: `BEFORE` or `OVERLAP`.
        low, high: 95% interval of `value`; None where it is not known.
    """

    corpus: str
    split: str
    metric: str
    value: float
    than: str
    reference: float
    low: float | None = None
    high: float | None = None

    @property
    def clear(self) -> bool:
        """Whether the reference lies above the interval of the value, or above the value if there is none."""
        return not (self.value if self.high is None else self.high) >= self.reference

    @property
    def kind(self) -> str:
        """What all shortfalls of this kind have in common, in words."""
        if self.than == OVERLAP:
            return "No better than counting shared characters"
        if not self.clear:
            return "No clear gain or loss, the value before training lies within the 95% interval"
        return f"{'Ranks worse' if self.metric == 'spearman' else 'Finds less'} than before training"

    def __str__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.4f}, {self.high:.4f}]"
        values = f"{self.reference:.4f} -> {self.value:.4f}{interval}"
        if self.than == OVERLAP:
            values = f"{self.value:.4f}, overlap {self.reference:.4f}"
        return f"{SHORTFALL_METRICS[self.metric]} on {self.corpus} {self.split} {values}"


def in_words(shortfalls: list[Shortfall]) -> list[str]:
    """One line for each kind of shortfall."""
    return [
        f"{kind}: {'; '.join(str(shortfall) for shortfall in shortfalls if shortfall.kind == kind)}."
        for kind in dict.fromkeys(shortfall.kind for shortfall in shortfalls)
    ]


@dataclass(frozen=True)
class Written:
    """A student's generation on held-out synonyms: perplexity of the true ones, and statistics of samples."""

    perplexity: float
    samples: dict[str, float] | None = None


@dataclass(frozen=True)
class PretrainingRecord:
    """Text and final losses of pretraining."""

    text_sha256: dict[str, str]  # by file
    excluded_sentences: int
    excluded_lines_per_pass: int
    tokens: int
    minutes: float
    mlm_loss: float | None = None
    neighbour_loss: float | None = None
    compare_loss: float | None = None


@dataclass(kw_only=True)
class RunSummary:
    """Summary needed to judge and repeat a run; jobs omit fields that do not apply.

    Args:
        recipe: every setting by name, flags and defaults alike.
        train_seconds: without evaluation before and after.
        thresholds: lowest cosine or logit of similar pairs, by corpus.
        calibrations: maps from scores to probabilities, by corpus; empty for runs before 2026-11-22.
        prompts: texts in front of the first and the second sentence of every pair.
        intervals: 95% bootstrap intervals of the retrieval metrics in `after`; empty for runs before 2026-11-22.
        processes: None for older runs, which recorded neither it nor the footprint.
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
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    prompts: tuple[str, str] = ("", "")
    intervals: Intervals = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON, with the environment at the top level as in earlier records."""
        raw = asdict(self)
        return {**raw.pop("environment"), **raw}


@dataclass(kw_only=True)
class RunRecord(RunSummary):
    """Complete record of a run of `train`, `distill` or `pretrain`.

    Args:
        seconds: duration of the job.
        history: the log of Trainer.
        cached_part_size: pairs per device and part of a cached batch, at the end; None without caching.
        synonyms: number of pairs with a target to generate; only for students, as `Written` is.
        proof: None for older runs.
        leaks: pairs of a held-out split that training has seen, by corpus and split in words.
        shortfalls: where the run was in vain; `remedies` say what to try then.
    """

    seconds: float
    history: list[dict[str, Any]]
    cached_part_size: int | None = None
    synonyms: int | None = None
    written_before: Written | None = None
    written_after: Written | None = None
    pretraining: PretrainingRecord | None = None
    proof: Proof | None = None
    leaks: dict[str, int] = field(default_factory=dict)
    shortfalls: list[Shortfall] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    def save(self, folder: str | Path) -> None:
        """Writes `run.json`, after which the run counts as finished."""
        text = json.dumps(self.to_json(), ensure_ascii=False, indent=2, default=str)
        write_atomically(Path(folder, RECORD_NAME), text + "\n")
        Path(folder, UNFINISHED).unlink(missing_ok=True)


def read_record(folder: str | Path) -> RunRecord | None:
    """Reads the record of a model folder; None for a model that was not made by a run of ours.

    Raises:
        InputError: the file is not one that this version can read.
    """
    file = Path(folder, RECORD_NAME)
    if not file.is_file():
        return None
    with readable_by_this_version(file):
        raw = current_form(json.loads(file.read_text(encoding="utf-8")))
        return RunRecord(
            **summary_fields(raw),
            **{name: raw[name] for name in ("seconds", "history")},
            cached_part_size=raw.get("cached_part_size"),
            synonyms=raw.get("synonyms"),
            written_before=optional(Written, raw.get("written_before")),
            written_after=optional(Written, raw.get("written_after")),
            pretraining=optional(PretrainingRecord, raw.get("pretraining")),
            proof=optional(Proof, raw.get("proof")),
            leaks=raw.get("leaks", {}),
            shortfalls=[Shortfall(**shortfall) for shortfall in raw.get("shortfalls", [])],
            remedies=raw.get("remedies", []),
        )


def decision_rules(model: str | Path) -> dict[str, DecisionRule]:
    """Thresholds and probabilities of a model folder by corpus; empty if it was not trained here on labels of 0 and 1.

    Raises:
        InputError: a `run.json` that this version cannot read.
    """
    record = read_record(model)
    if record is None:
        return {}
    return {name: DecisionRule(name, record.thresholds[name], calibration, record.prompts)
            for name, calibration in record.calibrations.items()}  # fmt: skip


@contextmanager
def readable_by_this_version(file: Path) -> Iterator[None]:
    """Converts errors while reading a record into an `InputError` that names the file.

    Raises:
        InputError: always when the block fails.
    """
    try:
        yield
    except (json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{file} is not the result of a run that this version of cosent can read ({type(error).__name__}: {error})."
            " Another version or program wrote it. Read it with that version, or remove it and run again."
        ) from error


def summary_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """Fields of `RunSummary` from a record in its current form; unknown keys, of later versions, are ignored."""
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
        "calibrations": {name: calibration_from(saved) for name, saved in raw.get("calibrations", {}).items()},
        "prompts": tuple(raw.get("prompts", ("", ""))),
        "intervals": {
            corpus: {split: {name: tuple(ends) for name, ends in named.items()} for split, named in splits.items()}
            for corpus, splits in raw.get("intervals", {}).items()
        },
    }


def optional(cls: type, given: dict | None):
    """An instance of a dataclass from its fields by name, or None."""
    return None if given is None else cls(**given)


def current_form(raw: dict[str, Any]) -> dict[str, Any]:
    """Converts a record of version 0.1 to the current form, with the same numbers.

    Most differences are of records from before 2026-11-22; pretraining on pairs, with its `match_loss`, went later.
    """
    raw = raw | {"recipe": current_settings(raw["recipe"])}
    if "text_sha256" in raw:  # pretraining, one level up
        raw |= {"corpora": {}, "before": {}, "after": {}, "train_seconds": 60 * raw["minutes"]}
    read = raw if "text_sha256" in raw else raw.get("pretraining")
    if read:
        raw["pretraining"] = {f.name: read[f.name] for f in fields(PretrainingRecord) if f.name in read}
    for moment in ("before", "after"):
        report = raw.get(moment, {})
        if "spearman" in report:  # a student's: Spearman by corpus and split, next to its generation
            raw[moment] = {corpus: {split: {"spearman": value} for split, value in splits.items()}
                           for corpus, splits in report["spearman"].items()}  # fmt: skip
            if "perplexity" in report:
                raw[f"written_{moment}"] = {key: report.get(key) for key in ("perplexity", "samples")}
    if "parameters" in raw:
        sizes = dict.fromkeys(("parameters", "trainable_parameters"), raw["parameters"])
        raw["footprint"] = sizes | {"optimizer_mib": None, "peak_mib": None}
    return raw


def current_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings under their current names: `no_packing: false` is now `packing: true`."""
    renamed = {f"no_{name}": name for name in ("packing", "generation")}
    return {renamed.get(key, key): not value if key in renamed else value for key, value in settings.items()}
