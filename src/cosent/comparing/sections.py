"""Sections of a report: Markdown of a study's settings, quality, differences, learning and time.

Each takes the study and the folder for its figures, and is empty where nothing was measured.
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np

from cosent.comparing import columns, figures
from cosent.comparing.columns import Column, mean, most_runs, rows_of, score, start_of, start_rows
from cosent.comparing.comparison import Compared, by_seed, compare, compare_queries
from cosent.comparing.document import Cell, image, markdown_table, mean_of, measured, plain, section, times_100
from cosent.comparing.results import Result, Study, grouped, points
from cosent.evaluation.retrieval import METRICS, NAMES
from cosent.evaluation.significance import RESAMPLES

# Settings that every report shows, next to those in which the methods differ.
SHOWN = (
    "model_name_or_path",
    "pooling",
    "limit_train",
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
)
# Settings that differ between runs, but are not a choice.
INCIDENTAL = ("seed", "output_dir", "corpus", "corpora", "data_dir", "resume_from_checkpoint", "logging_steps")
PROTOCOL = (
    "The epoch that is kept, and every threshold, is chosen on validation; the test split is scored once. Numbers are "
    "Spearman correlations times 100 unless stated otherwise, as mean ± standard deviation over seeds."
)
INTERVALS = (
    f"Intervals of Student's t over test rows and seeds, with Satterthwaite's degrees of freedom. {RESAMPLES:,} times, "
    "test rows are drawn with replacement, the same for both methods and pairs that share a sentence together. The "
    "spread over seeds (those that both have; one seed says nothing about other runs) adds what rows do not explain. "
    "There is no correction for the number of comparisons. An open dot marks a difference whose interval includes 0."
)
RETRIEVAL = (
    "Every sentence with similar ones is a query for them among all others. Intervals of differences are paired, as "
    "those of Spearman, with queries drawn in the place of pairs."
)
GRID = (
    "Every method tried the same values with the first seed. It takes those with the highest validation Spearman, in "
    "bold, for all seeds; the test split has no part in it."
)
SPEED = (
    "Pairs per second of training exclude the evaluations between epochs. Pairs are scored in batches, both sentences "
    "anew; a bi-encoder that stores its vectors would need only a dot product per pair. Parallel runs share the "
    "machine: compare figures only within a study."
)
LEARNING: dict[str, Column] = {
    "after epoch 1": lambda runs: times_100(run.first_epoch for run in runs),
    "best": lambda runs: times_100(run.best_validation for run in runs),
    "epochs to 90% of best": mean(lambda run: run.epochs_to_90, ".1f"),
}
COSTS: dict[str, Column] = {
    "training minutes": columns.minutes,
    "pairs/s trained": mean(lambda run: run.train_pairs_per_second, ".0f"),
    "pairs/s scored": mean(lambda run: run.score_pairs_per_second, ".0f"),
    "weights trained": columns.trained_share,
    "optimizer MiB": mean(lambda run: run.footprint.optimizer_mib if run.footprint else None, ".1f"),
    "peak MiB": columns.peak_mib,
    "test Spearman x100": lambda runs: times_100(run.test(corpus) for run in runs for corpus in run.tested_on),
}
ERRORS = {"brier": "Brier", "log_loss": "log loss", "calibration_error": "calibration error"}
ERROR_HEADER = [
    "method, corpus",
    "map",
    *(f"{name}, {how}" for name in ERRORS.values() for how in ("as is", "calibrated")),
]


def overview(study: Study, _: Path) -> str:
    """Overview of the runs: seeds, encoders, devices, commits, and settings that differ between methods."""
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in study.results}))
    columns = zip(
        *(
            (str(r.recipe["model_name_or_path"]), r.environment.device, r.environment.short_commit)
            for r in study.results
        ),
        strict=True,
    )
    encoders, devices, commits = (", ".join(dict.fromkeys(values)) for values in columns)
    text = [
        f"{len(study.results)} runs of {len(study.rows)} methods, seeds {seeds}, from {encoders}, on {devices}; commit "
        f"{commits}. {PROTOCOL}"
    ]
    if study.missing:
        more = f"; and {len(study.missing) - 6} more" if len(study.missing) > 6 else ""
        text.append(f"Not finished, {len(study.missing)} runs: {'; '.join(study.missing[:6])}{more}.")
    recipes = {row: results[0].recipe for row, results in study.rows.items()}
    keys = dict.fromkeys([*SHOWN, *(key for recipe in recipes.values() for key in recipe)])
    values = {key: [recipe.get(key) for recipe in recipes.values()] for key in keys if key not in INCIDENTAL}
    differing = {key: column for key, column in values.items() if len(set(map(str, column))) > 1}
    same = [f"{key} {values[key][0]}" for key in SHOWN if key not in differing and values[key][0] is not None]
    rows = [[row, *(setting(column[i]) for column in differing.values())] for i, row in enumerate(recipes)]
    text.append(f"The same for all: {', '.join(same)}. What differs:")
    return section("What was run", *map(plain, text), markdown_table(["method", *differing], rows))


def setting(value: Any) -> Cell:
    """The value of a flag as a cell."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return None if value is None else str(value)


def tuning(study: Study, _: Path) -> str:
    """The grid: validation Spearman by method, training corpus and point, the chosen one in bold."""
    if not study.tried:
        return ""
    grid, rows, best = list(points(study.tune)), [], []
    for place, ((method, corpus), tried) in enumerate(study.tried.items()):
        rows.append([f"{method}, {corpus}", *(times_100([tried.get(point)]) for point in grid)])
        if len(tried) == len(grid):
            reached = [-np.inf if (value := tried[point]) is None else value for point in grid]
            best.append((place, 1 + int(np.argmax(reached))))
    table = markdown_table(["best validation Spearman x100", *grid], rows, best)
    return section("Settings chosen on validation", GRID, table)


def quality(study: Study, folder: Path) -> str:
    """Test Spearman by method and corpus, after training and before it."""
    rows = means(study, "spearman", study.corpora)
    starts = grouped(study.results, lambda run: f"before training: {start_of(run)}")
    untrained = [score(corpus, moment="before") for corpus in study.corpora]
    before = rows_of(starts, [*untrained, mean_of_corpora(study.corpora, moment="before"), lambda _: None])
    header = ["method", *study.corpora, "mean of corpora", "n"]
    plots = []
    for corpus in study.corpora:
        runs = [
            (row, [100 * v for v in measured(r.test(corpus) for r in study.cell(row, corpus))]) for row in study.rows
        ]
        title = f"{corpus}: test Spearman"
        plots.append(image(folder, title, figures.dots(title, runs, "test Spearman x100")))
    caption = "Mean ± standard deviation over n seeds; a dot is a run, the bar the mean of a method."
    return section("Test Spearman", caption, markdown_table(header, [*rows, *before], best_of(rows)), *plots)


def accuracy(study: Study, _: Path) -> str:
    """Accuracy at the validation threshold, for binary labels."""
    corpora = [c for c in study.corpora if any(r.test(c, "accuracy") is not None for r in study.results)]
    if not corpora:
        return ""
    rows = means(study, "accuracy", corpora)
    table = markdown_table(["method", *corpora, "mean of corpora", "n"], rows, best_of(rows))
    return section("Accuracy", "x100, at the threshold that was most accurate on validation.", table)


def means(study: Study, metric: str, corpora: list[str]) -> list[list[Cell]]:
    """Rows of a test metric, one per method: a column per corpus, their mean, and the number of seeds."""
    each = [score(corpus, metric) for corpus in corpora]
    return rows_of(study.rows, [*each, mean_of_corpora(corpora, metric), most_runs(corpora)])


def mean_of_corpora(corpora: list[str], metric: str = "spearman", moment: str = "after") -> Column:
    """Mean over corpora of the mean over runs, times 100; None unless there are several, all of them measured."""

    def column(runs: list[Result]) -> Cell:
        cells = [measured(run.test(corpus, metric, moment) for run in runs) for corpus in corpora]
        return f"{100 * statistics.mean(map(statistics.mean, cells)):.2f}" if len(cells) > 1 and all(cells) else None

    return column


def best_of(rows: list[list[Cell]]) -> list[tuple[int, int]]:
    """Cells with the highest mean of each column, compared as printed."""
    best = []
    for column in range(1, len(rows[0]) - 1 if len(rows) > 1 else 0):  # after the name, before the count
        printed = {place: str(row[column]).split()[0] for place, row in enumerate(rows) if row[column] is not None}
        highest = max(map(float, printed.values()), default=None)
        best += [(place, column) for place, mean in printed.items() if float(mean) == highest]
    return best


def differences(study: Study, folder: Path) -> str:
    """Paired bootstrap intervals of the difference of every two methods, by corpus."""
    blocks: list[str] = []
    without: set[str] = set()
    for corpus in study.corpora:
        runs = by_seed(study, corpus)
        without |= {row for row in study.rows if row not in runs and study.cell(row, corpus)}
        blocks += difference_blocks(compare(runs, corpus), corpus, "Spearman", folder)
    if blocks:
        blocks.insert(0, INTERVALS)
    if without and len(study.rows) > 1:
        blocks.append(plain(f"No interval for {', '.join(sorted(without))}: the scores of these runs were not kept."))
    return section("Differences between methods", *blocks)


def retrieval(study: Study, folder: Path) -> str:
    """All retrieval metrics on test, and the differences of every two methods in Recall@10."""
    blocks: list[str] = []
    for corpus in study.corpora:
        runs = by_seed(study, corpus, "queries")
        if not runs:
            continue
        every = [run for seeds in runs.values() for run in seeds.values()]
        names = ("spearman", *METRICS)
        rows = start_rows(every, corpus, names)
        rows += rows_of(study.rows, [*(score(corpus, name) for name in names), most_runs([corpus])])
        sizes = {(run.test(corpus, "queries"), run.test(corpus, "pool")) for run in every}
        among = " or ".join(f"{queries:.0f} queries among {pool:.0f} sentences" for queries, pool in sorted(sizes))
        blocks.append(plain(f"Test x100 on {corpus}, {among}; mean ± standard deviation over n seeds."))
        blocks.append(markdown_table(["method", "Spearman", *NAMES.values(), "n"], rows))
        blocks += difference_blocks(compare_queries(runs, corpus, "recall_at_10"), corpus, "Recall@10", folder)
    return section("Retrieval", *([RETRIEVAL, *blocks] if blocks else []))


def difference_blocks(found: Compared, corpus: str, measure: str, folder: Path) -> list[str]:
    """A figure of the differences (if there are many, only those of the first method) and a table of all."""
    if not found:
        return []
    first = next(iter(found))[0]
    title, lines = f"{corpus}: differences in {measure}", []
    rows: list[list[Cell]] = []
    for (a, b), (each, seeds) in found.items():
        mean, low, high = (100 * value for value in (each.mean, each.low, each.high))
        if len(found) <= 6 or a == first:
            lines.append((f"{a} - {b}", mean, low, high))
        verdict = f"{a if low > 0 else b} better" if each.significant else "not significant"
        rows.append([f"{a} - {b}", f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}", seeds, verdict])
    header = [f"{measure} x100 on {corpus}", "mean", "95% interval", "seeds", "verdict"]
    figure = figures.intervals(title, lines, f"test {measure} x100")
    return [image(folder, title, figure), markdown_table(header, rows)]


def probabilities(study: Study, _: Path) -> str:
    """Errors of probabilities on test, for corpora with labels of 0 and 1."""
    rows = error_rows(study)
    caption = "Errors of scores taken as probabilities, and of the probabilities of the map from validation, on test."
    return section("Probabilities", caption, markdown_table(ERROR_HEADER, rows)) if rows else ""


def error_rows(study: Study) -> list[list[Cell]]:
    """A row per method and corpus that has a map; means over its runs."""
    rows: list[list[Cell]] = []
    for row in study.rows:
        for corpus in study.corpora:
            runs = [run for run in study.cell(row, corpus) if corpus in run.calibrations]
            if runs:
                maps = dict.fromkeys(run.calibrations[corpus].method for run in runs)
                errors = [
                    mean_of((run.test(corpus, prefix + metric) for run in runs), ".4f")
                    for metric in ERRORS
                    for prefix in ("uncalibrated_", "")
                ]
                rows.append([f"{row}, {corpus}", " or ".join(maps), *errors])
    return rows


def learning(study: Study, folder: Path) -> str:
    """Validation curves by corpus, quality after one epoch, and epochs to 90% of the best."""
    plots: list[str] = []
    rows: list[list[Cell]] = []
    validated = [run for run in study.results if run.validation_curve]
    for corpus, runs in grouped(validated, lambda run: run.corpus).items():
        methods = grouped(runs, lambda run: run.method)
        rows += rows_of({f"{method}, {corpus}": of_method for method, of_method in methods.items()}, LEARNING.values())
        drawn = [line for method, of_method in methods.items() if (line := curve(method, of_method))[1]]
        if drawn:
            title = f"{corpus}: validation"
            plots.append(image(folder, title, figures.curves(title, drawn, "epoch", "Spearman x100")))
    caption = "Validation Spearman x100. A line is the mean of the runs of a method; the band spans all of them."
    table = markdown_table(["method, trained on", *LEARNING], rows)
    return section("Learning curves", caption, *plots, table) if rows else ""


def curve(method: str, runs: list[Result]) -> tuple[str, list[float], list[list[float]]]:
    """Label, epochs, and values x100 of all runs by epoch, up to the last epoch that all of them reached.

    Evaluations whose Spearman is undefined in a run, whose scores were all equal, are left out.
    """
    together = zip(*(run.validation_curve for run in runs), strict=False)
    kept = [each for each in together if np.isfinite([value for _, value in each]).all()]
    return method, [each[0][0] for each in kept], [[100 * value for _, value in each] for each in kept]


def speed(study: Study, _: Path) -> str:
    """Time and memory of training, time of scoring, and quality: means over seeds."""
    between = ", trained on " if study.crosses else ", "
    rows = rows_of(grouped(study.results, lambda run: f"{run.method}{between}{run.corpus}"), COSTS.values())
    return section("Time", SPEED, markdown_table(["method, trained on", *COSTS], rows))


SECTIONS = (overview, tuning, quality, differences, retrieval, accuracy, probabilities, learning, speed)
