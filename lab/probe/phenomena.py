"""Minimal pairs of Chinese by phenomenon: accuracy of the order of their scores.

An item is a sentence, another wording of it, and the sentence with one thing changed. It is passed if the other wording
scores higher; a tie is a failure.
"""

import csv
import gzip
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from cosent.evaluation.similarity import overlaps

# What changes the meaning, and what does not.
CHANGES = (
    "negation",
    "antonym",
    "number",
    "unit",
    "date",
    "model",
    "place",
    "direction",
    "roles",
    "degree",
    "quantifier",
)
VARIANTS = ("punctuation", "typo", "homophone", "traditional", "adverb_order", "synonym")
PHENOMENA = CHANGES + VARIANTS
ITEMS = Path(__file__).with_name("phenomena.tsv.gz")


@dataclass(frozen=True)
class Item:
    """A sentence, another sentence of the same meaning, and one of a different meaning.

    Args:
        template: what items are alike by, for intervals: the number of a template.
    """

    phenomenon: str
    template: str
    anchor: str
    same: str
    different: str


@cache
def read_items() -> list[Item]:
    """The shipped items, 120 of a phenomenon."""
    with gzip.open(ITEMS, "rt", encoding="utf-8", newline="") as file:
        return [Item(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def pairs(items: list[Item]) -> dict[str, list[str]]:
    """Both columns of the pairs to score: every sentence with its other wording, then with its changed form."""
    others = [item.same for item in items] + [item.different for item in items]
    return {"sentence1": [item.anchor for item in items] * 2, "sentence2": others}


def passed(scores: np.ndarray) -> np.ndarray:
    """Which items have the right order, by the scores of their `pairs`."""
    same, different = np.split(scores, 2)
    return same > different


def by_phenomenon(items: list[Item], hits: np.ndarray) -> dict[str, dict[str, Any]]:
    """Accuracy by phenomenon with its 95% interval, and the accuracy of character overlap.

    Args:
        hits: whether each item was passed.
    """
    names, templates = (np.array([getattr(item, name) for item in items]) for name in ("phenomenon", "template"))
    of_overlap = passed(overlaps(*pairs(items).values()))
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names.tolist()):
        rows = names == name
        found[name] = {
            "items": int(rows.sum()),
            "overlap": float(of_overlap[rows].mean()),
            "accuracy": float(hits[rows].mean()),
            "interval": list(share_interval(hits[rows], templates[rows])),
        }
    return found


def share_interval(hits: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """95% interval of a share of items that come in groups, as those of a template do.

    Wilson's, of as many independent items as vary like these: `n p (1 - p) / variance of the share over groups`, times
    `(1.96 / t)^2` for the few groups that it is estimated from; of as many as there are groups if all items agree.

    Source: Korn and Graubard, Survey Methodology 24 (1998), 193-201, with Wilson's interval.
    """
    count, share = len(hits), float(np.mean(hits))
    number = len(np.unique(groups))
    if number < 2:
        return 0.0, 1.0
    variance, normal = group_variance(hits, groups), stats.norm.ppf(0.975)
    effective = min(count, share * (1 - share) / variance) if variance > 0 else number
    effective *= (normal / stats.t.ppf(0.975, number - 1)) ** 2
    middle = (share + normal**2 / (2 * effective)) / (1 + normal**2 / effective)
    half = (
        normal / (1 + normal**2 / effective) * np.sqrt(share * (1 - share) / effective + normal**2 / (4 * effective**2))
    )
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def group_variance(values: np.ndarray, groups: np.ndarray) -> float:
    """Variance of the mean of values that come in groups of any size."""
    _, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, weights=values - values.mean())
    return float(len(sums) / (len(sums) - 1) * np.square(sums).sum() / len(values) ** 2)
