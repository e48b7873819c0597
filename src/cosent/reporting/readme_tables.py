"""Markdown tables of studies for README and docs."""

import statistics
from collections.abc import Iterable

from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, mean_of, printed, setting, times_100
from cosent.studies.results import Result, Study


def study_table(study: Study) -> str:
    """Test Spearman x100 of a study: mean and standard deviation over seeds, by method (rows) and corpus (columns).

    The first row is the score of character overlap, which needs no model, on each corpus whose audit was kept. Flags
    that were chosen on validation have a column. If a method trained an adapter, two more columns show the share of
    trained weights and the peak memory.
    """
    adapters = any(run.footprint and run.footprint.trained_share < 1 for run in study.results)
    extra = ["weights trained", "peak MiB"] if adapters else []
    overlaps = [times_100([study.overlap(corpus)]) for corpus in study.corpora]
    empty = [None] * (2 + len(study.tune) + len(extra))
    rows: list[list[Cell]] = [["character overlap, no model", *overlaps, *empty]]
    for row, runs in study.rows.items():
        means = [times_100(run.test(corpus) for run in study.cell(row, corpus)) for corpus in study.corpora]
        minutes = Number(statistics.mean(run.train_seconds for run in runs) / 60, form=".1f")
        chosen = (", ".join(dict.fromkeys(printed(setting(run.recipe[key])) for run in runs)) for key in study.tune)
        cells: list[Cell] = [row, *means, *chosen, len({run.seed for run in runs}), minutes]
        rows.append([*cells, *(_adapter_cells(runs) if adapters else [])])
    header = ["test Spearman x100, mean ± std", *study.corpora, *study.tune, "seeds", "minutes per run", *extra]
    return f"{markdown_table(header, rows)}\n\n{protocol(study.results, study.tune)}"


def _adapter_cells(runs: list[Result]) -> list[Cell]:
    footprints = [run.footprint for run in runs if run.footprint is not None]
    peak = mean_of((footprint.peak_mib for footprint in footprints), ".0f")
    return [Number(footprints[0].trained_share, form=".1%"), peak]


def protocol(results: list[Result], tuned: Iterable[str] = ()) -> str:
    """Settings of the runs; where they differ, every value, in the order of the runs.

    Args:
        tuned: flags that were chosen on validation, which the table shows itself.
    """

    def values(key: str, form: str = "") -> str:
        each = [result.recipe[key] for result in results]
        return " or ".join(dict.fromkeys(format(value, form) for value in each if value is not None))

    run = results[0]
    pairs = limited(results)
    limit = f", {pairs} training pairs" if pairs else ""
    commits = ", ".join(dict.fromkeys(result.environment.short_commit for result in results))
    pooling = f", {values('pooling')} pooling" if values("pooling") else ""  # cross-encoders have none
    rate = "chosen on validation" if "learning_rate" in tuned else values("learning_rate", "g")
    chosen = "step" if _steps(run) else "epoch"
    return (
        f"`{values('model_name_or_path')}` encoder{pooling}, batch "
        f"{values('per_device_train_batch_size')}, learning rate {rate}, "
        f"{run_length(results)}{limit}, best validation {chosen}; "
        f"{run.environment.device}, commit {commits}."
    )


def limited(results: list[Result]) -> str:
    """Pairs that runs with --limit_train took of a corpus, every value in their order: some have fewer."""
    limits = [(run.recipe["limit_train"], run.train_pairs) for run in results if run.recipe.get("limit_train")]
    return " or ".join(dict.fromkeys(f"{min(limit, pairs or limit)}" for limit, pairs in limits))


def run_length(results: list[Result]) -> str:
    """How long runs were, in steps or epochs; where they differ, every value, in the order of the runs."""
    key = "max_steps" if _steps(results[0]) else "num_train_epochs"
    lengths = list(dict.fromkeys(result.recipe[key] for result in results))
    unit = key.split("_")[-1]
    return " or ".join(f"{length:g}" for length in lengths) + f" {unit[:-1] if lengths == [1] else unit}"


def _steps(run: Result) -> bool:
    return (run.recipe.get("max_steps") or 0) > 0
