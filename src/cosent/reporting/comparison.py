"""Settings and test quality of the methods of a study: the first sections of a report."""

from cosent.reporting import figures
from cosent.reporting.document import Figures, Section, Table
from cosent.reporting.numbers import Cell, Number, mean_of_corpora, measured, setting, times_100
from cosent.reporting.published_rows import published_means
from cosent.studies.grid import points
from cosent.studies.results import Result, Study

# Settings that every report shows, next to those in which the methods differ.
SHOWN = ("model_name_or_path", "pooling", "limit_train", "per_device_train_batch_size", "learning_rate",
         "num_train_epochs")  # fmt: skip
# Settings that decide what a model scores before it is trained.
STARTS = ("model_name_or_path", "tower", "pooling")
# Settings that differ between runs, but are not a choice.
INCIDENTAL = ("seed", "output_dir", "corpus", "corpora", "data_dir", "resume_from_checkpoint", "logging_steps")


def overview(study: Study) -> Section:
    seeds = sorted({result.seed for result in study.results})
    encoders = dict.fromkeys(str(result.recipe["model_name_or_path"]) for result in study.results)
    devices = dict.fromkeys(result.environment.device for result in study.results)
    commits = dict.fromkeys(result.environment.short_commit for result in study.results)
    text = [
        f"{len(study.results)} runs of {len(study.rows)} methods, seeds {', '.join(map(str, seeds))}, from "
        f"{', '.join(encoders)}, on {', '.join(devices)}; commit {', '.join(commits)}. The epoch that is kept, and "
        "every threshold, is chosen on validation; the test split is scored once. Numbers are Spearman correlations "
        "times 100 unless stated otherwise, as mean ± standard deviation over seeds."
    ]
    for folder, hashes in study.prepared_anew.items():
        versions = "; ".join(f"{short} of {', '.join(runs)}" for short, runs in hashes.items())
        text.append(f"The runs have different data, since {folder} was prepared anew (manifest SHA-256): {versions}.")
    if study.missing:
        more = f"; and {len(study.missing) - 6} more" if len(study.missing) > 6 else ""
        text.append(f"Not finished, {len(study.missing)} runs: {'; '.join(study.missing[:6])}{more}.")
    return Section("What was run", [*text, settings(study)])


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


def tuning(study: Study) -> Section:
    """Section on the grid: validation Spearman by method, training corpus and point, the chosen one in bold."""
    if not study.tried:
        return Section("Settings chosen on validation", [])
    grid = list(points(study.tune))
    rows: list[list[Cell]] = []
    best = set()
    for place, ((method, corpus), tried) in enumerate(study.tried.items()):
        rows.append([f"{method.name}, {corpus}", *(times_100([tried.validation.get(point)]) for point in grid)])
        if len(tried.validation) == len(grid):
            best.add((place, 1 + grid.index(tried.chosen)))
    text = (
        "Every method tried the same values with the first seed. It takes those with the highest validation Spearman, "
        "in bold, for all seeds; the test split has no part in it."
    )
    table = Table("Best validation Spearman x100", ["method, trained on", *grid], rows, strong=frozenset(best))
    return Section("Settings chosen on validation", [text, table])


def quality(study: Study) -> Section:
    """Section on test Spearman by method and corpus: after training, before it, and as published."""
    rows, published = _means(study, "spearman", study.corpora)
    caption = "Test Spearman x100, mean ± standard deviation over n seeds; published rows are single runs."
    header = ["method", *study.corpora, "mean of corpora", "n"]
    table = Table(caption, header, [*rows, *before_training(study), *published], strong=_best(rows))
    plots = [dot_figure(study, corpus) for corpus in study.corpora]
    legend = "A dot is a run, the bar the mean of a method, a diamond the published number for the same encoder."
    return Section("Test Spearman", [table, Figures(legend, plots)])


def _means(study: Study, metric: str, corpora: list[str]) -> tuple[list[list[Cell]], list[list[Cell]]]:
    """Rows of a test metric, one per method, a column per corpus; and the published rows for these methods."""
    rows: list[list[Cell]] = []
    published: list[list[Cell]] = []
    for row, results in study.rows.items():
        cells = [[run.test(corpus, metric) for run in study.cell(row, corpus)] for corpus in corpora]
        rows.append([row, *map(times_100, cells), mean_of_corpora(cells), max(map(len, cells))])
        lines = published_means(study, metric, results[0].method, corpora)
        published += [line for line in lines if line not in published]
    return rows, published


def before_training(study: Study) -> list[list[Cell]]:
    """Rows of test Spearman before training, one per encoder, tower and pooling."""
    rows: list[list[Cell]] = []
    for start, results in by_start(study.results).items():
        cells = [[r.test(c, moment="before") for r in results if c in r.tested_on] for c in study.corpora]
        rows.append([f"before training: {start}", *map(times_100, cells), mean_of_corpora(cells), None])
    return rows


def by_start(results: list[Result]) -> dict[str, list[Result]]:
    """Results by the encoder, tower and pooling that they started from, which decide what an untrained model scores."""
    starts: dict[str, list[Result]] = {}
    for result in results:
        settings = (result.recipe.get(key) for key in STARTS)
        starts.setdefault(", ".join(str(value) for value in settings if value is not None), []).append(result)
    return starts


def dot_figure(study: Study, corpus: str) -> str:
    rows = []
    for row, results in study.rows.items():
        values = [100 * v for v in measured(r.test(corpus) for r in study.cell(row, corpus))]
        method = results[0].method
        same = [p[corpus] for t in study.tables("spearman") for p in t.of(method)
                if p["encoder"] == method.variant and corpus in p]  # fmt: skip
        rows.append((row, values, same[0] if same else None))
    return figures.dots(f"{corpus}: test Spearman", rows, "test Spearman x100")


def accuracy(study: Study) -> Section:
    """Section on accuracy at the validation threshold and at the best test threshold, for binary labels."""
    corpora = [c for c in study.corpora if any(r.test(c, "accuracy") is not None for r in study.results)]
    if not corpora:
        return Section("Accuracy", [])
    rows, published = _means(study, "accuracy", corpora)
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
    lines += [[*line, *[None] * len(corpora)] for line in published]
    return Section("Accuracy", [Table(caption, header, lines, strong=_best(rows)), note])


def _best(rows: list[list[Cell]]) -> frozenset[tuple[int, int]]:
    """Cells with the highest mean of each column, compared to the two printed decimals."""
    best = set()
    if len(rows) > 1:
        for column in range(1, len(rows[0]) - 1):  # after the name, before the count
            cells = [(place, row[column]) for place, row in enumerate(rows)]
            means = {place: round(cell.value, 2) for place, cell in cells if isinstance(cell, Number)}
            best |= {(place, column) for place, mean in means.items() if mean == max(means.values())}
    return frozenset(best)
