"""Markdown tables of studies for README and docs."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import yaml

from cosent.comparing.report import Cell, by_seed, markdown_table, times_100
from cosent.comparing.results import Result, Study
from cosent.evaluation.significance import spearman
from lab import RESULTS, ROOT
from lab.tables.columns import (
    ERROR_HEADER,
    Column,
    error_rows,
    minutes,
    peak_mib,
    rows_of,
    trained_share,
)
from lab.tables.rows import read_test_rows

SHOWN = ("spearman", "recall_at_1", "recall_at_10")
SPECIAL = {  # settings that only some losses have, or that few studies set
    "sbert_classes": "Sentence-BERT with {:g} classes",
    "in_batch_weight": "AnglE with an in-batch weight of {:g}",
    "limit_seed": "the same pairs for every seed",
}


def study_table(study: Study) -> str:
    """Test Spearman x100 of a study: mean and standard deviation over seeds, by method (rows) and corpus (columns).

    The first row is the score of character overlap, which needs no model, from the audit of each corpus. Flags that
    were chosen on validation have a column. If a method trained an adapter, two more columns show the share of trained
    weights and the peak memory.
    """
    adapters = any(run.footprint and run.footprint.trained_share < 1 for run in study.results)
    columns = {key: partial(settings, key) for key in study.tune} | {"seeds": seeds, "minutes per run": minutes}
    if adapters:
        columns |= {"weights trained": trained_share, "peak MiB": peak_mib}
    overlaps = ["character overlap, no model", *map(overlap_cell, study.corpora), *[None] * len(columns)]
    rows = rows_of(study.rows, [*map(tested, study.corpora), *columns.values()])
    header = ["test Spearman x100, mean ± std", *study.corpora, *columns]
    return f"{markdown_table(header, [overlaps, *rows])}\n\n{protocol(study.results, study.tune)}"


def settings(key: str, runs: list[Result]) -> str:
    """Values of a flag that was chosen on validation."""
    values = (run.recipe[key] for run in runs)
    return ", ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values))


def seeds(runs: list[Result]) -> str:
    """Runs that were tested on a corpus: fewest to most, which differ while a study is running."""
    counts = Counter(corpus for run in runs for corpus in run.tested_on).values()
    return " to ".join(dict.fromkeys(map(str, (min(counts), max(counts)))))


def audited(corpus: str, split: str, entry: str) -> Any:
    """An entry of a split in the audits; None for a corpus without an audit."""
    audits = json.loads((RESULTS / "audit.json").read_text(encoding="utf-8"))
    return audits[corpus]["splits"][split][entry] if corpus in audits else None


def overlap(corpus: str) -> float | None:
    """Spearman x100 of the character overlap of the test pairs; None for a corpus without an audit."""
    return audited(corpus, "test", "overlap_spearman")


def overlap_cell(corpus: str) -> str | None:
    return None if (value := overlap(corpus)) is None else f"{value:.2f}"


@cache
def published() -> list[dict[str, Any]]:
    """The tables of the sources."""
    return yaml.safe_load((ROOT / "lab/claims/published.yaml").read_text(encoding="utf-8"))


def median(values: list[float], form: str = "+.1f") -> str:
    """The median of seeds, where one of them moves their mean by more than a point."""
    apart = len(values) > 3 and abs(statistics.median(values) - statistics.mean(values)) > 1
    return f", median {statistics.median(values):{form}}" if apart else ""


def tested(corpus: str) -> Column:
    """Mean and standard deviation of test Spearman x100, and the median where a collapse moves the mean."""

    def cell(runs: list[Result]) -> Cell:
        values = [value for run in runs if (value := run.test(corpus)) is not None]
        return f"{times_100(values)}{median([100 * value for value in values], '.2f')}" if values else None

    return cell


def with_interval(mean: float, low: float, high: float) -> str:
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def probabilities_table(study: Study) -> str:
    """Errors of probabilities and raw scores."""
    return f"{markdown_table(ERROR_HEADER, error_rows(study))}\n\nOn test; means over seeds. {protocol(study.results)}"


def seen_table(study: Study) -> str:
    """Test Spearman x100 on LCQMC of the pairs with a sentence of the training split, and of those without."""
    runs, known = by_seed(study, "lcqmc"), read_test_rows()
    labels = next(iter(runs["cosent"].values())).scores["lcqmc"]["labels"]
    seen, rows = known["lcqmc/seen"] > 0, []
    for name, part in (("with a sentence of the training split", seen), ("without", ~seen)):
        of_part = {
            method: np.array([spearman(run.scores["lcqmc"]["after"][part], labels[part]) for run in seeds.values()])
            for method, seeds in runs.items()
        }
        starts = [
            times_100([spearman(known[f"lcqmc/{base}"][part], labels[part])]) for base in ("overlap", "untrained")
        ]
        gaps = [of_part["cosent"] - of_part[method] for method in ("sbert", "sbert_regression")]
        rows.append([name, int(part.sum()), *starts, *map(times_100, [*of_part.values(), *gaps])])
    header = ["test pairs of lcqmc", "pairs", "character overlap", "untrained", *of_part]
    return markdown_table([*header, "cosent - sbert", "cosent - sbert_regression"], rows)


def protocol(results: list[Result], tuned: Iterable[str] = ()) -> str:
    """Settings of the runs; where they differ, every value, in the order of the runs.

    Args:
        tuned: flags that were chosen on validation, which the table shows itself.
    """

    def values(key: str, form: str = "") -> str:
        each = [result.recipe.get(key) for result in results]
        return " or ".join(dict.fromkeys(format(value, form) for value in each if value is not None))

    run = results[0]
    pairs = limited(results)
    limit = f", {pairs} training pairs" if pairs else ""
    commits = ", ".join(dict.fromkeys(result.environment.short_commit for result in results))
    pooling = f", {values('pooling')} pooling" if values("pooling") else ""  # cross-encoders have none
    special = [
        text.format(value)
        for key, text in SPECIAL.items()
        for value in dict.fromkeys(run.recipe.get(key) for run in results)
        if value is not None
    ]
    rate = "chosen on validation" if "learning_rate" in tuned else values("learning_rate", "g")
    return (
        f"`{values('model_name_or_path')}` encoder{pooling}, batch {values('per_device_train_batch_size')}, learning "
        f"rate {rate}, {run_length(results)}{limit}, best validation {'step' if in_steps(run) else 'epoch'}"
        f"{''.join(f', {text}' for text in special)}; "
        f"{run.environment.device}, commit {commits}."
    )


def limited(results: list[Result]) -> str:
    """Pairs that runs with --limit_train took of a corpus, every value in their order: some have fewer."""
    limits = [(run.recipe["limit_train"], run.train_pairs) for run in results if run.recipe.get("limit_train")]
    return " or ".join(dict.fromkeys(f"{min(limit, pairs or limit)}" for limit, pairs in limits))


def run_length(results: list[Result]) -> str:
    """How long runs were, in steps or epochs; where they differ, every value, in the order of the runs."""
    key = "max_steps" if in_steps(results[0]) else "num_train_epochs"
    lengths = list(dict.fromkeys(result.recipe[key] for result in results))
    unit = key.split("_")[-1]
    return " or ".join(f"{length:g}" for length in lengths) + f" {unit[:-1] if lengths == [1] else unit}"


def in_steps(run: Result) -> bool:
    return (run.recipe.get("max_steps") or 0) > 0
