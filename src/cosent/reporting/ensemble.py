"""Compare runs with the mean of their ranks, and with that of all but one."""

from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.significance import Difference, difference, mean_of_ranks, resampled_spearman, spearman
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_scores import SCORES_NAME, Scores, read_scores

HEADER = ["Spearman x100", "ensemble's gain over it [95%]", "ensemble without it", "loss without it [95%]"]


def ensemble(places: list[str]) -> str:
    """A Markdown table for every test set that all runs have scored: each run, and their fusion by mean rank.

    Args:
        places: folders of trained models of either tower, or results of a study (`.json` or `.npz`).

    Raises:
        InputError: fewer than two, no scores there, no test set in common, or other test rows under the same name.
    """
    if len(places) < 2:
        raise InputError(f"An ensemble has two runs or more, got {len(places)}. Name others after --ensemble.")
    runs = [scores_of(place) for place in places]
    shared = [corpus for corpus in runs[0] if all("test" in run.get(corpus, {}) for run in runs)]
    if not shared:
        tested = "; ".join(f"{place}: {', '.join(run)}" for place, run in zip(places, runs, strict=True))
        raise InputError(f"The runs have no test set in common ({tested}). Name runs that were tested on the same one.")
    tables = [table(places, [run[corpus]["test"] for run in runs], corpus) for corpus in shared]
    caption = (
        f"The ensemble is the mean of the ranks of {len(places)} runs, so that cosines and logits count alike. Paired "
        "bootstrap over test rows; each row is a single run."
    )
    return "\n\n".join([caption, *tables])


def table(places: list[str], tests: list[dict[str, np.ndarray]], corpus: str) -> str:
    """The table of one test set."""
    labels = tests[0]["labels"]
    for place, test in zip(places, tests, strict=True):
        if not np.array_equal(test["labels"], labels):
            raise InputError(f"{places[0]} and {place} were tested on other rows of {corpus}: their labels differ.")
    single = np.stack([test["after"] for test in tests])
    without = [mean_of_ranks(np.delete(single, left_out, axis=0)) for left_out in range(len(single))]
    scores = np.stack([mean_of_ranks(single), *single, *without])
    resampled, values = resampled_spearman(scores, labels), [spearman(row, labels) for row in scores]

    def ahead_of(other: int) -> str:
        found = difference(resampled[:, :1], resampled[:, [other]], values[0] - values[other])
        return in_words(found)

    rows: list[list[Cell]] = []
    for number, place in enumerate(places, start=1):
        rest = number + len(places)
        rows.append([place, Number(100 * values[number]), ahead_of(number), Number(100 * values[rest]), ahead_of(rest)])
    rows.append(["mean of ranks", Number(100 * values[0]), None, None, None])
    return markdown_table([f"{corpus} test", *HEADER], rows)


def in_words(found: Difference) -> str:
    return f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


def scores_of(place: str) -> Scores:
    path = Path(place)
    file = path / SCORES_NAME if path.is_dir() else path.with_suffix(".npz")
    if not file.is_file():
        raise InputError(
            f"{place} has no scores: there is no {file}. Name the folder of a model that was trained here, or a "
            "result of a study. Runs from before scores were kept must run again."
        )
    return read_scores(file)
