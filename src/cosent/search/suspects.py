"""Pairs to check: labels that a model contradicts, and near neighbours without a label."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import numpy as np

from cosent.data.groups import components, similar
from cosent.data.manifest import COLUMNS, Labels
from cosent.evaluation.calibration import fit_isotonic
from cosent.search.differences import difference
from cosent.search.mining import Pairs, Pool, Ranks, cosines, neighbour_pairs

PER_SENTENCE = 5  # nearest sentences without a label that are looked at
COLUMNS_OF_SUSPECTS = (*COLUMNS, "suggested_label", "why", "cosine", "expected_label")
CONTRADICTED, UNLABELLED = "label contradicts the cosine", "near neighbours without a label"


def suspects(
    pool: Pool, vectors: np.ndarray, meaning: Labels, contradicted: int, unlabelled: int, left_out: Counter
) -> list[dict]:
    """Rows of `COLUMNS_OF_SUSPECTS`: the labels that are least plausible first, then neighbours, the nearest first.

    The expected label of a cosine is that of the labelled pairs around it (isotonic regression), for labels of 0 and 1
    the probability of 1; the suggested one is the nearest to it of those that occur. Left out are pairs whose label
    would rise, though they differ in a number or a negation, and neighbours that others link by similar labels.

    Args:
        vectors: unit vectors of all texts of the pool, float32 of shape `(texts, width)`.
        contradicted, unlabelled: most rows of either kind.
        left_out: counts the pairs that were left out among those, by reason.
    """
    first, second = without_linked(pool, all_neighbours(pool, vectors), meaning.similar_from)
    first, second = np.r_[pool.first, first], np.r_[pool.second, second]
    own, cosine = len(pool.labels), cosines(vectors, first, second)
    low, width = meaning.label_min, meaning.label_max - meaning.label_min
    curve = fit_isotonic(cosine[:own], (pool.labels - low) / width)
    expected = low + width * curve.probabilities(cosine)
    values = np.unique(pool.labels)
    suggested = values[np.searchsorted((values[1:] + values[:-1]) / 2, expected)]
    rises = np.r_[expected[:own] > pool.labels, np.full(len(first) - own, True)]

    def some(order: Iterable[int], count: int, why: str) -> list[dict]:
        def rows():
            for row in order:
                texts = pool.texts[first[row]], pool.texts[second[row]]
                if rises[row] and (reason := difference(*texts)) is not None:
                    left_out[f"differ in {reason}"] += 1
                    continue
                label = plain(pool.labels[row]) if row < own else None
                numbers = plain(suggested[row]), why, round(float(cosine[row]), 4), round(float(expected[row]), 4)
                yield dict(zip(COLUMNS_OF_SUSPECTS, (*texts, label, *numbers), strict=True))

        return list(islice(rows(), count))

    gaps = abs(expected[:own] - pool.labels)
    order = np.lexsort((np.where(rises, -cosine, cosine)[:own], -gaps))  # among equal gaps the farther cosine
    order = order[suggested[order] != pool.labels[order]]
    nearest_ones = own + np.argsort(-cosine[own:], kind="stable")
    return some(order, contradicted, CONTRADICTED) + some(nearest_ones, unlabelled, UNLABELLED)


def all_neighbours(pool: Pool, vectors: np.ndarray) -> Pairs:
    """Pairs of a sentence with its nearest ones, none that is labelled."""
    ranks = Ranks(0, PER_SENTENCE, PER_SENTENCE)
    return neighbour_pairs(pool, vectors[: pool.size], ranks, np.zeros(len(pool.labels), bool), Counter())


def without_linked(pool: Pool, pairs: Pairs, similar_from: float) -> Pairs:
    """The pairs that no chain of similar labels links."""
    links = similar(pool.labels, similar_from)
    group = components(pool.first[links], pool.second[links], len(pool.texts))
    apart = group[pairs[0]] != group[pairs[1]]
    return pairs[0][apart], pairs[1][apart]


def plain(label: np.float32) -> float | int:
    """A label in its shortest form: 1 and not 1.0."""
    return int(label) if label == int(label) else float(str(label))  # the shortest text of a float32
