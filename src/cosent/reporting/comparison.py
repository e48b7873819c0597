"""Sections of a report that compare methods: settings, quality on test, and intervals of differences."""

import statistics
from collections.abc import Callable, Hashable
from itertools import combinations
from typing import Any

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS, NAMES
from cosent.evaluation.significance import (
    RESAMPLES,
    Difference,
    difference,
    independent,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.reporting import figures
from cosent.reporting.document import Block, Cell, Figures, Number, Range, Section, Table, measured, times_100
from cosent.results import Result, Study, points

# Settings that every report shows, next to those in which the methods differ.
SHOWN = ("model_name_or_path", "pooling", "limit_train", "per_device_train_batch_size", "learning_rate",
         "num_train_epochs")  # fmt: skip
# Settings that decide what a model scores before it is trained.
STARTS = ("model_name_or_path", "tower", "pooling")
# Settings that differ between runs, but are not a choice.
INCIDENTAL = ("seed", "output_dir", "corpus", "corpora", "data_dir", "resume_from_checkpoint", "logging_steps")
METHOD = (
    f"Intervals of Student's t over test rows and seeds, with Satterthwaite's degrees of freedom. {RESAMPLES:,} times, "
    "test rows are drawn with replacement, the same for both methods and pairs that share a sentence together. The "
    "spread over seeds (those that both have; one seed says nothing about other runs) adds what rows do not explain. "
    "There is no correction for the number of comparisons."
)
RETRIEVAL = (
    "Every sentence with similar ones is a query for them among all others. Intervals of differences are paired, as "
    "those of Spearman, with queries drawn in the place of pairs."
)

Runs = dict[str, dict[int, Result]]  # by row of a table and seed
Compared = dict[tuple[str, str], tuple[Difference, int]]  # difference and number of seeds of every two rows


def overview(study: Study) -> Section:
    """Section on what was run: seeds, encoders, devices, commits, and the settings of the methods."""
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in study.results}))
    encoders, devices, commits = (
        ", ".join(dict.fromkeys(values))
        for values in zip(
            *((str(r.recipe["model_name_or_path"]), r.environment.device, r.environment.short_commit)
              for r in study.results), strict=True)
    )  # fmt: skip
    text = [
        f"{len(study.results)} runs of {len(study.rows)} methods, seeds {seeds}, from {encoders}, on {devices}; commit "
        f"{commits}. The epoch that is kept, and every threshold, is chosen on validation; the test split is scored "
        "once. Numbers are Spearman correlations times 100 unless stated otherwise, as mean ± standard deviation over "
        "seeds."
    ]
    for folder, hashes in prepared_anew(study).items():
        versions = "; ".join(f"{short} of {', '.join(runs)}" for short, runs in hashes.items())
        text.append(f"The runs have different data, since {folder} was prepared anew (manifest SHA-256): {versions}.")
    if study.missing:
        more = f"; and {len(study.missing) - 6} more" if len(study.missing) > 6 else ""
        text.append(f"Not finished, {len(study.missing)} runs: {'; '.join(study.missing[:6])}{more}.")
    return Section("What was run", [*text, settings(study)])


def prepared_anew(study: Study) -> dict[str, dict[str, list[str]]]:
    """Runs by the manifest hash of their data, for every folder of a corpus that was prepared more than once."""
    hashes: dict[str, dict[str, list[str]]] = {}
    for result in study.results:
        for corpus in result.corpora.values():
            versions = hashes.setdefault(corpus.folder, {})
            versions.setdefault(corpus.manifest_sha256[:10], []).append(result.name)
    return {folder: versions for folder, versions in hashes.items() if len(versions) > 1}


def settings(study: Study) -> Table:
    """Table of the settings in which methods differ, a row per method; the caption lists those that they share."""
    recipes = {row: results[0].recipe for row, results in study.rows.items()}
    keys = dict.fromkeys([*SHOWN, *(key for recipe in recipes.values() for key in recipe)])
    values = {key: [recipe.get(key) for recipe in recipes.values()] for key in keys if key not in INCIDENTAL}
    shown = {key: column for key, column in values.items() if key in SHOWN and column[0] is not None}
    same = [f"{key} {column[0]}" for key, column in shown.items() if len(set(map(str, column))) == 1]
    differing = {key: column for key, column in values.items() if len(set(map(str, column))) > 1}
    rows = [[row, *(setting(column[i]) for column in differing.values())] for i, row in enumerate(recipes)]
    return Table(f"The same for all: {', '.join(same)}. What differs:", ["method", *differing], rows)


def setting(value: Any) -> Cell:
    """The value of a flag as a cell."""
    if isinstance(value, float):
        return Number(value, form="g")
    return value if value is None or type(value) is int else str(value)


def tuning(study: Study) -> Section:
    """Section on the grid: validation Spearman by method, training corpus and point, the chosen one in bold."""
    if not study.tried:
        return Section("Settings chosen on validation")
    grid = list(points(study.tune))
    rows: list[list[Cell]] = []
    best = set()
    for place, ((method, corpus), tried) in enumerate(study.tried.items()):
        rows.append([f"{method}, {corpus}", *(times_100([tried.get(point)]) for point in grid)])
        if len(tried) == len(grid):
            best.add((place, 1 + grid.index(chosen(tried))))
    text = (
        "Every method tried the same values with the first seed. It takes those with the highest validation Spearman, "
        "in bold, for all seeds; the test split has no part in it."
    )
    table = Table("Best validation Spearman x100", ["method, trained on", *grid], rows, strong=frozenset(best))
    return Section("Settings chosen on validation", [text, table])


def chosen(tried: dict[str, float | None]) -> str:
    """The point of the grid that is best on validation, of equal ones the first."""
    return max(tried, key=lambda point: float("-inf") if tried[point] is None else tried[point])  # type: ignore


def quality(study: Study) -> Section:
    """Section on test Spearman by method and corpus, after training and before it."""
    rows = means(study, "spearman", study.corpora)
    before: list[list[Cell]] = []
    for start, results in by_start(study.results).items():
        cells = [[r.test(c, moment="before") for r in results if c in r.tested_on] for c in study.corpora]
        before.append([f"before training: {start}", *map(times_100, cells), mean_of_corpora(cells), None])
    caption = "Test Spearman x100, mean ± standard deviation over n seeds."
    table = Table(caption, ["method", *study.corpora, "mean of corpora", "n"], [*rows, *before], strong=best_of(rows))
    plots = []
    for corpus in study.corpora:
        runs = [(row, [100 * v for v in measured(r.test(corpus) for r in study.cell(row, corpus))])
                for row in study.rows]  # fmt: skip
        plots.append(figures.dots(f"{corpus}: test Spearman", runs, "test Spearman x100"))
    return Section("Test Spearman", [table, Figures("A dot is a run, the bar the mean of a method.", plots)])


def accuracy(study: Study) -> Section:
    """Section on accuracy at the validation threshold and at the best test threshold, for binary labels."""
    corpora = [c for c in study.corpora if any(r.test(c, "accuracy") is not None for r in study.results)]
    if not corpora:
        return Section("Accuracy")
    rows = means(study, "accuracy", corpora)
    oracles = [
        [times_100(run.test(corpus, "oracle_accuracy") for run in study.cell(row, corpus)) for corpus in corpora]
        for row in study.rows
    ]
    caption = "Test accuracy x100 at the threshold that was most accurate on validation, mean ± standard deviation."
    note = (
        "The oracle columns use the threshold that is best on the test split itself. No deployed model could, but "
        "other projects report it, so it is shown for comparison with theirs."
    )
    header = ["method", *corpora, "mean of corpora", "n", *(f"{c} (oracle threshold)" for c in corpora)]
    lines: list[list[Cell]] = [[*row, *oracle] for row, oracle in zip(rows, oracles, strict=True)]
    return Section("Accuracy", [Table(caption, header, lines, strong=best_of(rows)), note])


def means(study: Study, metric: str, corpora: list[str]) -> list[list[Cell]]:
    """Rows of a test metric, one per method: a column per corpus, their mean, and the number of seeds."""
    rows: list[list[Cell]] = []
    for row in study.rows:
        cells = [[run.test(corpus, metric) for run in study.cell(row, corpus)] for corpus in corpora]
        rows.append([row, *map(times_100, cells), mean_of_corpora(cells), max(map(len, cells))])
    return rows


def mean_of_corpora(cells: list[list[float | None]]) -> Number | None:
    """Mean over corpora of the mean over runs, times 100; None unless there are several, all of them measured."""
    each = [statistics.mean(measured(cell)) for cell in cells if measured(cell)]
    return Number(100 * statistics.mean(each)) if len(each) == len(cells) > 1 else None


def best_of(rows: list[list[Cell]]) -> frozenset[tuple[int, int]]:
    """Cells with the highest mean of each column, compared to the two printed decimals."""
    best = set()
    if len(rows) > 1:
        for column in range(1, len(rows[0]) - 1):  # after the name, before the count
            cells = [(place, row[column]) for place, row in enumerate(rows)]
            values = {place: round(cell.value, 2) for place, cell in cells if isinstance(cell, Number)}
            best |= {(place, column) for place, mean in values.items() if mean == max(values.values())}
    return frozenset(best)


def by_start(results: list[Result]) -> dict[str, list[Result]]:
    """Results by the encoder, tower and pooling that they started from, which decide what an untrained model scores."""
    starts: dict[str, list[Result]] = {}
    for result in results:
        values = (result.recipe.get(key) for key in STARTS)
        starts.setdefault(", ".join(str(value) for value in values if value is not None), []).append(result)
    return starts


def differences(study: Study) -> Section:
    """Section with paired bootstrap intervals of the difference of every two methods, by corpus."""
    blocks: list[Block] = []
    without: set[str] = set()
    for corpus in study.corpora:
        runs = by_seed(study, corpus, lambda run, corpus=corpus: corpus in run.scores)  # type: ignore[misc]
        without |= {row for row in study.rows if row not in runs and study.cell(row, corpus)}
        blocks += difference_blocks(compare(runs, corpus), corpus, "Spearman")
    if blocks:
        blocks.insert(0, METHOD)
    if without and len(study.rows) > 1:
        blocks.append(f"No interval for {', '.join(sorted(without))}: the scores of these runs were not kept.")
    return Section("Differences between methods", blocks)


def retrieval(study: Study, metric: str) -> Section:
    """Section of all retrieval metrics on test, and of the differences of every two methods in one of them."""
    blocks: list[Block] = []
    for corpus in study.corpora:
        runs = by_seed(study, corpus, lambda run, corpus=corpus: corpus in run.queries)  # type: ignore[misc]
        if not runs:
            continue
        every = [run for seeds in runs.values() for run in seeds.values()]
        rows = [*start_rows(every, corpus, ("spearman", *METRICS)),
                *(test_row(study, row, corpus, ("spearman", *METRICS)) for row in study.rows)]  # fmt: skip
        sizes = {(run.test(corpus, "queries"), run.test(corpus, "pool")) for run in every}
        among = " or ".join(f"{queries:.0f} queries among {pool:.0f} sentences" for queries, pool in sorted(sizes))
        caption = f"Test x100 on {corpus}, {among}; mean ± standard deviation over n seeds."
        blocks.append(Table(caption, ["method", "Spearman", *NAMES.values(), "n"], rows))
        if all(metric in run.queries[corpus].moments["after"] for run in every):
            blocks += difference_blocks(compare_queries(runs, corpus, metric), corpus, NAMES[metric])
    return Section("Retrieval", [RETRIEVAL, *blocks] if blocks else [])


def test_row(study: Study, row: str, corpus: str, metrics: tuple[str, ...]) -> list[Cell]:
    """Test metrics of a method, and the number of its runs."""
    runs = study.cell(row, corpus)
    return [row, *(times_100(run.test(corpus, metric) for run in runs) for metric in metrics), len(runs)]


def start_rows(runs: list[Result], corpus: str, metrics: tuple[str, ...]) -> list[list[Cell]]:
    """The same before training, a row for each encoder and pooling that runs started from."""
    starts = by_start(runs)
    rows: list[list[Cell]] = []
    for start, (run, *_) in starts.items():  # but for rounding, all runs of a start have the same
        values = [times_100([run.test(corpus, metric, "before")]) for metric in metrics]
        rows.append([f"before training: {start}" if len(starts) > 1 else "before training", *values, None])
    return rows


def by_seed(study: Study, corpus: str, usable: Callable[[Result], bool]) -> Runs:
    """Usable runs that were tested on a corpus, by row and seed."""
    runs = {row: {run.seed: run for run in study.cell(row, corpus) if usable(run)} for row in study.rows}
    return {row: seeds for row, seeds in runs.items() if seeds}


def difference_blocks(found: Compared, corpus: str, measure: str) -> list[Block]:
    """A figure of the differences (if there are many, only those of the first method) and a table of all."""
    if not found:
        return []
    first = next(iter(found))[0]
    shown = found if len(found) <= 6 else {pair: each for pair, each in found.items() if pair[0] == first}
    lines = [(f"{a} - {b}", 100 * each.mean, 100 * each.low, 100 * each.high) for (a, b), (each, _) in shown.items()]
    which = "Differences" if shown is found else f"Differences between {first} and the other methods"
    figure = figures.intervals(f"{corpus}: differences", lines, f"test {measure} x100")
    rows: list[list[Cell]] = [
        [f"{a} - {b}", Number(100 * each.mean, form="+.2f"), Range(100 * each.low, 100 * each.high), seeds,
         verdict(a, b, each)] for (a, b), (each, seeds) in found.items()
    ]  # fmt: skip
    header = ["difference", "mean", "95% interval", "seeds", "verdict"]
    return [
        Figures(f"{which} on {corpus}; an open dot marks a difference whose interval includes 0.", [figure]),
        Table(f"Differences in test {measure} x100 on {corpus}", header, rows, folded=len(rows) > 6),
    ]


def verdict(first: str, second: str, found: Difference) -> str:
    if not found.significant:
        return "not significant"
    return f"{first if found.low > 0 else second} better"


def compare(runs: Runs, corpus: str) -> Compared:
    """Differences in Spearman of all pairs of methods that share a seed, and the number of seeds they share.

    Raises:
        InputError: runs were tested on other rows.
    """
    if len(runs) < 2:
        return {}
    scores, labels, groups = shared_scores([run for seeds in runs.values() for run in seeds.values()], corpus)
    resampled = resampled_spearman(scores, labels, groups=groups)
    return paired(runs, [spearman(row, labels) for row in scores], resampled, independent(groups))


def compare_queries(runs: Runs, corpus: str, metric: str) -> Compared:
    """As `compare`, of a retrieval metric whose values by query were kept.

    Raises:
        InputError: runs had other queries, or searched other sentences.
    """
    if len(runs) < 2:
        return {}
    values = shared_queries([run for seeds in runs.values() for run in seeds.values()], corpus, metric)
    return paired(runs, [float(row.mean()) for row in values], resampled_means(values), values.shape[1])


def shared_scores(runs: list[Result], corpus: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of several runs on the test rows that they share, `(runs, rows)`, their labels and groups, `(rows,)`.

    Raises:
        InputError: runs were tested on other rows.
    """
    refuse_others(runs, corpus, lambda run: run.scores[corpus]["labels"].tobytes(), "rows")
    rows = runs[0].scores[corpus]
    groups = next((run.scores[corpus]["groups"] for run in runs if "groups" in run.scores[corpus]), None)
    of_row = np.arange(len(rows["labels"])) if groups is None else np.unique(groups, return_inverse=True)[1]
    return np.stack([run.scores[corpus]["after"] for run in runs]), rows["labels"], of_row


def shared_queries(runs: list[Result], corpus: str, metric: str) -> np.ndarray:
    """A retrieval metric of several runs on the test queries that they share, `(runs, queries)`.

    Raises:
        InputError: runs had other queries, or searched other sentences.
    """
    refuse_others(runs, corpus, lambda run: run.queries[corpus].task, "queries, or with other --retrieval flags,")
    return np.stack([run.queries[corpus].moments["after"][metric] for run in runs]).astype(np.float64)


def refuse_others(runs: list[Result], corpus: str, task: Callable[[Result], Hashable], what: str) -> None:
    for run in runs:
        if task(run) != task(runs[0]):
            raise InputError(
                f"{run.name} was tested on other {what} of {corpus} than {runs[0].name}. Delete the earlier "
                "results, and run the study again."
            )


def paired(runs: Runs, values: list[float], resampled: np.ndarray, groups: float) -> Compared:
    """Differences of all pairs of methods that share a seed.

    Args:
        values: the metric of every run, in order.
        resampled: the metric on the same resamples, `(resamples, runs)`.
        groups: how many groups of equal size the drawn rows are worth.
    """
    places = {id(run): place for place, run in enumerate(run for seeds in runs.values() for run in seeds.values())}
    found = {}
    for (first, ours), (second, theirs) in combinations(runs.items(), 2):
        seeds = [seed for seed in ours if seed in theirs]
        if seeds:
            a, b = ([places[id(side[seed])] for seed in seeds] for side in (ours, theirs))
            gaps = np.array([values[i] - values[j] for i, j in zip(a, b, strict=True)])
            found[first, second] = difference(gaps, resampled[:, a] - resampled[:, b], groups), len(seeds)
    return found
