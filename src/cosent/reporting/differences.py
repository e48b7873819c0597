"""Paired bootstrap intervals of the differences between the methods of a study: a section of a report."""

from itertools import combinations
from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.significance import (
    RESAMPLES,
    Difference,
    difference,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.reporting import figures
from cosent.reporting.document import Block, Figures, Section, Table
from cosent.reporting.numbers import Cell, Number, Range
from cosent.studies.results import Result, Study

METHOD = (
    f"Paired bootstrap: {RESAMPLES:,} times, test rows are drawn with replacement, the same rows for both methods, and "
    "so are seeds, the same for both (only seeds that both have; one seed says nothing about other runs). The "
    "interval is that of the 2.5th to the 97.5th percentile of the difference of the mean Spearman. There is no "
    "correction for the number of comparisons. Sources: Efron and Tibshirani 1993, chapter 13; Koehn 2004; Owen 2007."
)


def differences(study: Study) -> Section:
    """Section with paired bootstrap intervals of the difference of every two methods, by corpus."""
    blocks: list[Block] = []
    without: set[str] = set()
    for corpus in study.corpora:
        scored = {row: {r.seed: r for r in study.cell(row, corpus) if corpus in r.scores} for row in study.rows}
        without |= {row for row, runs in scored.items() if not runs and study.cell(row, corpus)}
        found = compare({row: runs for row, runs in scored.items() if runs}, corpus)
        if found:
            blocks += difference_blocks(found, corpus)
    if blocks:
        blocks.insert(0, METHOD)
    if without and len(study.rows) > 1:
        blocks.append(f"No interval for {', '.join(sorted(without))}: the scores of these runs were not kept.")
    return Section("Differences between methods", blocks)


def difference_blocks(
    found: dict[tuple[str, str], tuple[Difference, int]], corpus: str, measure: str = "Spearman"
) -> list[Figures | Table]:
    """A figure of the differences (if there are many, only those of the first method) and a table of all."""
    first = next(iter(found))[0]
    shown = found if len(found) <= 6 else {pair: each for pair, each in found.items() if pair[0] == first}
    lines = [(f"{a} - {b}", 100 * each.mean, 100 * each.low, 100 * each.high) for (a, b), (each, _) in shown.items()]
    which = "Differences" if shown is found else f"Differences between {first} and the other methods"
    figure = figures.intervals(f"{corpus}: differences", lines, f"test {measure} x100")
    rows: list[list[Cell]] = [
        [f"{a} - {b}", Number(100 * each.mean, form="+.2f"), Range(100 * each.low, 100 * each.high), seeds,
         _verdict(a, b, each)] for (a, b), (each, seeds) in found.items()
    ]  # fmt: skip
    header = ["difference", "mean", "95% interval", "seeds", "verdict"]
    return [
        Figures(f"{which} on {corpus}; an open dot marks a difference whose interval includes 0.", [figure]),
        Table(f"Differences in test {measure} x100 on {corpus}", header, rows, folded=len(rows) > 6),
    ]


def compare(scored: dict[str, dict[int, Result]], corpus: str) -> dict[tuple[str, str], tuple[Difference, int]]:
    """Differences of all pairs of methods that share a seed, and the number of seeds they share.

    Args:
        scored: runs by method and seed, all with scores of `corpus`.

    Raises:
        InputError: runs were tested on other rows.
    """
    if len(scored) < 2:
        return {}
    runs = [run for by_seed in scored.values() for run in by_seed.values()]
    scores, labels = shared_scores(runs, corpus)
    resampled = resampled_spearman(scores, labels)
    columns = {run.file: (spearman(scores[i], labels), resampled[:, i]) for i, run in enumerate(runs)}
    return paired(scored, columns)


def shared_scores(runs: list[Result], corpus: str) -> tuple[np.ndarray, np.ndarray]:
    """Scores of several runs on the test rows that they share, `(runs, rows)`, and the labels of these, `(rows,)`.

    Raises:
        InputError: runs were tested on other rows.
    """
    tests = [run.scores[corpus]["test"] for run in runs]
    labels = tests[0]["labels"]
    for run, test in zip(runs, tests, strict=True):
        if not np.array_equal(test["labels"], labels):
            raise InputError(
                f"{run.file} was tested on other rows of {corpus} than {runs[0].file}: nothing can be compared pair by "
                "pair. Delete the results from before the corpus was prepared anew, and run the study again."
            )
    return np.stack([test["after"] for test in tests]), labels


def compare_queries(
    scored: dict[str, dict[int, Result]], corpus: str, metric: str
) -> dict[tuple[str, str], tuple[Difference, int]]:
    """As `compare`, of a retrieval metric whose values by query were kept.

    Raises:
        InputError: runs had other queries, or searched other sentences.
    """
    runs = [run for by_seed in scored.values() for run in by_seed.values()]
    if len(scored) < 2:
        return {}
    values = shared_queries(runs, corpus, metric)
    resampled = resampled_means(values)
    return paired(scored, {run.file: (float(values[i].mean()), resampled[:, i]) for i, run in enumerate(runs)})


def shared_queries(runs: list[Result], corpus: str, metric: str) -> np.ndarray:
    """A retrieval metric of several runs on the test queries that they share, `(runs, queries)`.

    Raises:
        InputError: runs had other queries, or searched other sentences.
    """
    found = [run.queries[corpus]["test"] for run in runs]
    for run, queries in zip(runs, found, strict=True):
        if queries.task != found[0].task:
            raise InputError(
                f"{run.file} had other queries on {corpus} than {runs[0].file}, or searched other sentences: nothing "
                "can be compared query by query. Train all methods with the same --retrieval flags on the same "
                "prepared corpus: delete the results from before and run the study again."
            )
    return np.stack([queries.moments["after"][metric] for queries in found]).astype(np.float64)


def paired(
    scored: dict[str, dict[int, Result]], columns: dict[Path, tuple[float, np.ndarray]]
) -> dict[tuple[str, str], tuple[Difference, int]]:
    """Differences of all pairs of methods that share a seed, and the number of seeds they share.

    Args:
        columns: by file of the result, the metric and its values on the same resamples `(resamples,)`.
    """
    found = {}
    for (first, ours), (second, theirs) in combinations(scored.items(), 2):
        seeds = [seed for seed in ours if seed in theirs]
        if seeds:
            a, b = ([columns[side[s].file] for s in seeds] for side in (ours, theirs))
            observed = float(np.mean([value for value, _ in a]) - np.mean([value for value, _ in b]))
            one, other = (np.stack([column for _, column in side], axis=1) for side in (a, b))
            found[first, second] = difference(one, other, observed), len(seeds)
    return found


def _verdict(first: str, second: str, found: Difference) -> str:
    if not found.significant:
        return "not significant"
    return f"{first if found.low > 0 else second} better"
