"""The report of a study as Markdown: the methods on test, their paired differences, and a picture of these."""

import re
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from html import escape
from itertools import combinations
from pathlib import Path

import numpy as np

from cosent.comparing import figures
from cosent.comparing.results import Result, Study, grouped
from cosent.errors import InputError
from cosent.evaluation.significance import (
    RESAMPLES,
    Difference,
    difference,
    independent,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.record import OVERLAP

Cell = str | int | None  # None is an empty cell
Runs = dict[str, dict[int, Result]]  # by row of a table and seed
Compared = dict[tuple[str, str], tuple[Difference, int]]  # difference and number of seeds of every two rows

STARTS = ("model_name_or_path", "tower", "pooling")  # settings that decide what a model scores before it is trained
FLOORS = {OVERLAP: "character overlap", "similar": "the shipped model similar"}
TABLE = (
    "Test x100, mean ± standard deviation over n seeds; Spearman unless stated otherwise. The epoch that is kept is "
    "chosen on validation; the test split is scored once."
)
INTERVALS = (
    f"Intervals of Student's t over test rows and seeds, with Satterthwaite's degrees of freedom. {RESAMPLES:,} times, "
    "test rows (for Recall@10: queries) are drawn with replacement, the same for both methods and pairs that share a "
    "sentence together. There is no correction for the number of comparisons."
)


def report(study: Study, picture: Path) -> str:
    """Markdown of a study; draws the picture, if there are differences, and refers to it by its folder and name."""
    compared = differences(study)
    blocks = [f"# Study {plain(study.name)}", *warnings(study), *overview(study), TABLE, table_of_methods(study)]
    if compared:
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(picture_of(compared), encoding="utf-8")
        blocks += ["## Differences", INTERVALS, table_of_differences(compared)]
        blocks.append(f"![intervals of all differences]({picture.parent.name}/{picture.name})")
    without = {row for row, runs in study.rows.items() if not any(run.scores for run in runs)}
    if without and len(study.rows) > 1:
        blocks.append(plain(f"No interval for {', '.join(sorted(without))}: the scores of these runs were not kept."))
    return "\n\n".join(blocks) + "\n"


def warnings(study: Study) -> list[str]:
    """A paragraph on the runs that warned of metrics which did not improve, with the warnings of the first one."""
    warned = [run for run in study.results if run.warnings]
    if not warned:
        return []
    first = f"{warned[0].name}: {' '.join(warned[0].warnings)}"
    return [f"**{len(warned)} of {len(study.results)} runs have warnings**, the first is {plain(first)}"]


def overview(study: Study) -> list[str]:
    """Paragraphs on seeds, encoders, devices and commits, and on what is missing."""
    facts = (
        (str(r.recipe["model_name_or_path"]), r.environment.device, r.environment.short_commit) for r in study.results
    )
    encoders, devices, commits = (", ".join(dict.fromkeys(values)) for values in zip(*facts, strict=True))
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in study.results}))
    text = [
        f"{len(study.results)} runs of {len(study.rows)} methods, seeds {seeds}, from {encoders}, on {devices}; commit "
        f"{commits}."
    ]
    if study.missing:
        more = f"; and {len(study.missing) - 6} more" if len(study.missing) > 6 else ""
        text.append(f"Not finished, {len(study.missing)} runs: {'; '.join(study.missing[:6])}{more}.")
    return list(map(plain, text))


def score(runs: list[Result], corpus: str, metric: str = "spearman", moment: str = "after") -> str | None:
    """Mean and standard deviation of a test metric, x100."""
    return times_100(run.test(corpus, metric, moment) for run in runs)


def start_of(run: Result) -> str:
    """The encoder, tower and pooling that a run started from."""
    return ", ".join(str(value) for key in STARTS if (value := run.recipe.get(key)) is not None)


def table_of_methods(study: Study) -> str:
    """Test Spearman and Recall@10 by method and corpus, after training and before it, and of the floors.

    Which difference is significant is in the `table_of_differences`.
    """
    corpora = study.corpora
    searched = [c for c in corpora if any(r.test(c, "recall_at_10") is not None for r in study.results)]
    columns = [(corpus, "spearman") for corpus in corpora] + [(corpus, "recall_at_10") for corpus in searched]

    def row_of(name: str, runs: list[Result], moment: str = "after") -> list[Cell]:
        means = [measured(run.test(corpus, moment=moment) for run in runs) for corpus in corpora]
        overall = f"{100 * statistics.mean(map(statistics.mean, means)):.2f}" if len(means) > 1 and all(means) else None
        return [name, *(score(runs, *column, moment) for column in columns), overall]

    rows = []
    for name, runs in study.rows.items():
        seeds = max(sum(corpus in run.tested_on for run in runs) for corpus in corpora)
        minutes = mean_of((run.train_seconds / 60 for run in runs), ".1f")
        rows.append([*row_of(name, runs), minutes, seeds])
    starts = grouped(study.results, lambda run: f"before training: {start_of(run)}")
    rows += [[*row_of(name, runs, "before"), None, None] for name, runs in starts.items()]
    for name, words in FLOORS.items():
        floors = [[run.floors.get(corpus, {}).get("test", {}).get(name) for run in study.results] for corpus in corpora]
        values = [mean_of((100 * value for value in measured(floor)), ".2f") for floor in floors]
        if any(values):
            rows.append([words, *values, *[None] * (len(rows[0]) - 1 - len(corpora))])
    header = ["method", *corpora, *(f"{corpus} Recall@10" for corpus in searched), "mean", "minutes", "n"]
    return markdown_table(header, rows)


def differences(study: Study) -> dict[tuple[str, str], Compared]:
    """Differences of every two methods, by corpus and name of the metric."""
    compared = {}
    for corpus in study.corpora:
        compared[corpus, "Spearman"] = compare(by_seed(study, corpus), corpus)
        compared[corpus, "Recall@10"] = compare(by_seed(study, corpus, "queries"), corpus, "recall_at_10")
    return {key: pairs for key, pairs in compared.items() if pairs}


def table_of_differences(compared: dict[tuple[str, str], Compared]) -> str:
    """Differences with their intervals and verdicts, x100."""
    rows: list[list[Cell]] = []
    for (corpus, metric), pairs in compared.items():
        for (a, b), (change, seeds) in pairs.items():
            mean, low, high = (f"{100 * value:+.2f}" for value in (change.mean, change.low, change.high))
            verdict = f"{a if change.low > 0 else b} better" if change.significant else "not significant"
            verdict += "; one seed" if seeds == 1 else ""
            rows.append([f"{a} - {b}", f"{corpus} {metric}", mean, f"{low} to {high}", seeds, verdict])
    return markdown_table(["difference", "on test x100", "mean", "95% interval", "seeds", "verdict"], rows)


def picture_of(compared: dict[tuple[str, str], Compared]) -> str:
    """SVG of the differences in Spearman; if there are many, only differences from the first method."""
    lines = []
    for (corpus, metric), pairs in compared.items():
        for (a, b), (change, _) in pairs.items():
            if metric == "Spearman" and (len(pairs) <= 6 or a == next(iter(pairs))[0]):
                values = (100 * value for value in (change.mean, change.low, change.high))
                lines.append((f"{corpus}: {a} - {b}", *values))
    return figures.intervals("Differences between methods", lines, "test Spearman x100")


def by_seed(study: Study, corpus: str, arrays: str = "scores") -> Runs:
    """Runs with stored test `scores` or `queries` of a corpus, by row and seed."""
    runs = {
        row: {run.seed: run for run in study.cell(row, corpus) if corpus in getattr(run, arrays)} for row in study.rows
    }
    return {row: seeds for row, seeds in runs.items() if seeds}


def compare(runs: Runs, corpus: str, metric: str = "spearman") -> Compared:
    """Differences in a metric of every two methods that share a seed, and the number of seeds they share.

    Args:
        metric: `spearman`, or a retrieval metric with stored values by query.
    """
    if len(runs) < 2:
        return {}
    results = [run for seeds in runs.values() for run in seeds.values()]
    if metric == "spearman":
        scores, labels, groups = shared_scores(results, corpus)
        values, worth = np.array([spearman(row, labels) for row in scores]), independent(groups)
        resampled = resampled_spearman(scores, labels, groups=groups)  # (resamples, runs)
    else:
        by_query = shared_queries(results, corpus, metric)
        values, worth, resampled = by_query.mean(axis=1), by_query.shape[1], resampled_means(by_query)
    places = {id(run): place for place, run in enumerate(results)}
    compared = {}
    for (first, ours), (second, theirs) in combinations(runs.items(), 2):
        seeds = [seed for seed in ours if seed in theirs]
        if seeds:
            a, b = ([places[id(side[seed])] for seed in seeds] for side in (ours, theirs))
            compared[first, second] = (
                difference(values[a] - values[b], resampled[:, a] - resampled[:, b], worth),
                len(seeds),
            )
    return compared


def shared_scores(runs: list[Result], corpus: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores of several runs on their common test rows, `(runs, rows)`, with labels and groups, `(rows,)`."""
    refuse_others(runs, corpus, lambda run: run.scores[corpus]["labels"].tobytes(), "rows")
    rows = runs[0].scores[corpus]
    groups = next((run.scores[corpus]["groups"] for run in runs if "groups" in run.scores[corpus]), None)
    of_row = np.arange(len(rows["labels"])) if groups is None else np.unique(groups, return_inverse=True)[1]
    return np.stack([run.scores[corpus]["after"] for run in runs]), rows["labels"], of_row


def shared_queries(runs: list[Result], corpus: str, metric: str) -> np.ndarray:
    """A retrieval metric of several runs on their common test queries, `(runs, queries)`."""
    refuse_others(runs, corpus, lambda run: run.queries[corpus].task, "queries, or with other --retrieval flags,")
    return np.stack([run.queries[corpus].moments["after"][metric] for run in runs]).astype(np.float64)


def refuse_others(runs: list[Result], corpus: str, task: Callable[[Result], Hashable], what: str) -> None:
    for run in runs:
        if task(run) != task(runs[0]):
            raise InputError(
                f"{run.name} was tested on other {what} of {corpus} than {runs[0].name}. Delete the earlier "
                "results, and run the study again."
            )


def measured(values: Iterable[float | None]) -> list[float]:
    """The values that are not None."""
    return [value for value in values if value is not None]


def times_100(values: Iterable[float | None]) -> str | None:
    """Mean over runs and, if there are several, standard deviation, both times 100; None if nothing was measured."""
    numbers = [100 * value for value in measured(values)]
    deviation = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{deviation}" if numbers else None


def mean_of(values: Iterable[float | None], form: str) -> str | None:
    """Mean over runs; None if nothing was measured."""
    numbers = measured(values)
    return format(statistics.mean(numbers), form) if numbers else None


def plain(text: str) -> str:
    """Escapes text for Markdown: no tag, column or emphasis begins in it."""
    return re.sub(r"([\\|*`\[\]])", r"\\\1", escape(" ".join(text.split()), quote=False))


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[Cell]], strong: Iterable[tuple[int, int]] = ()
) -> str:
    """A Markdown table; `strong` names the (row, column) of the cells in bold."""
    cells = [["" if cell is None else plain(str(cell)) for cell in row] for row in rows]
    for row, column in strong:
        cells[row][column] = f"**{cells[row][column]}**"
    lines = [f"| {' | '.join(row)} |" for row in ([plain(name) for name in header], *cells)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])
