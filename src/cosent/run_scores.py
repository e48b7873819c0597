"""Read and write `scores.npz`, the pair scores of a finished run in two bytes each.

They serve to compare two runs pair by pair. Rounding would not do: cosines of an untrained encoder are so close that
float16 leaves 21 values of 1,352 and moves their Spearman by 0.001, saturated probabilities by 0.03. So the rank of
every row is stored exactly, with at most 257 quantiles between which values are interpolated: rank statistics are
those of the original scores to the last bit, and a histogram is off by less than 1/256 of the rows.
"""

from pathlib import Path
from typing import Any

import numpy as np

SCORES_NAME = "scores.npz"
KNOTS = 257

Scores = dict[str, dict[str, dict[str, np.ndarray]]]  # by corpus, split and name; each array of shape (pairs,)


def save_scores(file: str | Path, scores: Scores) -> None:
    """Writes arrays by corpus, split and name (`labels`, `before`, `after`, `distances`) to a compressed `.npz`.

    Raises:
        ValueError: an array that is not `(pairs,)`, of another length than its neighbours, or not finite.
    """
    arrays: dict[str, Any] = {}
    for corpus, splits in scores.items():
        for split, named in splits.items():
            lengths = {name: np.shape(values) for name, values in named.items()}
            if len(set(lengths.values())) > 1:
                raise ValueError(
                    f"Expected arrays of one length for {corpus} {split}, got {lengths}. Scores would be compared with "
                    "the labels of other pairs. Pass one value per pair."
                )
            for name, values in named.items():
                arrays[f"{corpus}/{split}/{name}/ranks"], arrays[f"{corpus}/{split}/{name}/knots"] = pack(values)
    np.savez_compressed(file, **arrays)


def read_scores(file: str | Path) -> Scores:
    """Reads what `save_scores` wrote: float64 arrays with exact ranks and interpolated values."""
    scores: Scores = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            corpus, split, name, part = key.rsplit("/", 3)
            if part == "ranks":
                values = unpack(arrays[key], arrays[f"{corpus}/{split}/{name}/knots"])
                scores.setdefault(corpus, {}).setdefault(split, {})[name] = values
    return scores


def pack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks of values `(pairs,)`, 0 for the lowest and equal for equal ones, and the quantiles to restore them from.

    Returns:
        The smallest unsigned integers that hold the ranks, `(pairs,)`; float64 quantiles of the distinct values, at
        most `KNOTS` of them and evenly spaced by rank: up to 257 distinct values (labels) are kept exactly.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(
            f"Expected finite values (pairs,), got shape {values.shape} with {np.sum(~np.isfinite(values))} that are "
            "not finite. They have no rank. Look at training: it probably diverged."
        )
    distinct, ranks = np.unique(values, return_inverse=True)
    if not len(distinct):
        return ranks.astype(np.uint8), distinct
    places = np.linspace(0, len(distinct) - 1, min(len(distinct), KNOTS)).round().astype(int)
    return ranks.astype(np.min_scalar_type(len(distinct) - 1)), distinct[places]


def unpack(ranks: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Restores float64 values `(pairs,)` from packed ones, strictly rising with their rank."""
    if not len(ranks):
        return np.empty(0)
    distinct = int(ranks.max()) + 1
    places = np.linspace(0, distinct - 1, min(distinct, KNOTS)).round()
    return np.interp(np.arange(distinct), places, knots)[ranks]
