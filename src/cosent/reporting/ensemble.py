"""Compare two runs with the mean of their ranks."""

from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.significance import difference, mean_of_ranks, resampled_spearman, spearman
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_scores import SCORES_NAME, Scores, read_scores


def ensemble(first: str, second: str) -> str:
    """A Markdown table of two runs and their fusion by mean rank, on every test set that both have scored.

    Args:
        first, second: folders of trained models, or results of a study (`.json` or `.npz`).

    Raises:
        InputError: no scores there, no test set in common, or other test rows under the same name.
    """
    runs = [scores_of(place) for place in (first, second)]
    shared = [c for c in runs[0] if c in runs[1] and "test" in runs[0][c] and "test" in runs[1][c]]
    if not shared:
        raise InputError(f"{first} and {second} have no test set in common: {list(runs[0])} and {list(runs[1])}.")
    rows = []
    for corpus in shared:
        one, two = (run[corpus]["test"] for run in runs)
        if not np.array_equal(one["labels"], two["labels"]):
            raise InputError(f"{first} and {second} were tested on other rows of {corpus}: their labels differ.")
        scores = np.stack([one["after"], two["after"], mean_of_ranks(np.stack([one["after"], two["after"]]))])
        resampled, values = resampled_spearman(scores, one["labels"]), [spearman(s, one["labels"]) for s in scores]
        cells: list[Cell] = [Number(100 * value) for value in values]
        for single in (0, 1):
            gain = difference(resampled[:, 2:], resampled[:, single : single + 1], values[2] - values[single])
            cells.append(f"{100 * gain.mean:+.2f} [{100 * gain.low:+.2f}, {100 * gain.high:+.2f}]")
        rows.append([corpus, *cells])
    header = ["test Spearman x100", "A", "B", "mean of ranks", "gain over A [95%]", "gain over B [95%]"]
    caption = f"A is {first}, B is {second}. Paired bootstrap over test rows; A and B are single runs."
    return f"{caption}\n\n{markdown_table(header, rows)}"


def scores_of(place: str) -> Scores:
    path = Path(place)
    file = path / SCORES_NAME if path.is_dir() else path.with_suffix(".npz")
    if not file.is_file():
        raise InputError(
            f"{place} has no scores: there is no {file}. Name the folder of a model that was trained here, or a "
            "result of a study. Runs from before scores were kept must run again."
        )
    return read_scores(file)
