"""Differences between the methods of a study, with intervals over test rows and seeds."""

from collections.abc import Callable, Hashable
from itertools import combinations

import numpy as np

from cosent.comparing.results import Result, Study
from cosent.errors import InputError
from cosent.evaluation.significance import (
    Difference,
    difference,
    independent,
    resampled_means,
    resampled_spearman,
    spearman,
)

Runs = dict[str, dict[int, Result]]  # by row of a table and seed
Compared = dict[tuple[str, str], tuple[Difference, int]]  # difference and number of seeds of every two rows


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
