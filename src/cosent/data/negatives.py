"""Pairs made of given sentences: random negatives, and each sentence with itself (SimCSE)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cosent.data.corpus import labels_of
from cosent.data.manifest import COLUMNS, Manifest
from cosent.errors import InputError

if TYPE_CHECKING:
    import datasets


def random_negatives(rows: datasets.Dataset, manifest: Manifest, seed: int = 42) -> datasets.Dataset:
    """Replaces the second sentence of negative pairs by a random one of `rows`.

    It is neither of the pair's own, nor one that `rows` label as similar to the first, so that labels stay true. Rows
    and labels keep their order. Depends only on `seed`.

    Source: kexue.fm 8847, which claims that naive cosine losses fail only on hard negatives.
    """
    if manifest.label_kind != "binary":
        raise InputError(f"--random_negatives needs labels of 0 and 1, {manifest.name} has {manifest.label_kind} ones.")
    first, second, labels = rows["sentence1"][:], rows["sentence2"][:], labels_of(rows)
    similar = {pair for a, b, label in zip(first, second, labels, strict=True) if label for pair in ((a, b), (b, a))}
    drawn, rng = list(second), np.random.default_rng(seed)
    for row in np.flatnonzero(labels == 0):
        candidates = (second[index] for index in rng.integers(len(second), size=100))
        own = (first[row], second[row])
        drawn[row] = next((c for c in candidates if c not in own and (first[row], c) not in similar), None)
        if drawn[row] is None:
            count = len(set(second))
            raise InputError(f"--random_negatives: {count} different sentences of {manifest.name} train are too few.")
    return rows.remove_columns("sentence2").add_column("sentence2", drawn).select_columns(list(COLUMNS))


def simcse_pairs(sentences: Iterable[str], label: float = 1.0) -> datasets.Dataset:
    """SimCSE pairs: each distinct sentence with itself, in the order of their first occurrence, all with one label."""
    import datasets

    column = pc.unique(pa.array(sentences, pa.string()))  # both columns share its memory
    labels = pa.array([label] * len(column), pa.float32())
    return datasets.Dataset(pa.table([column, column, labels], names=list(COLUMNS)))
