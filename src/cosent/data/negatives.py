"""Easy negatives: negative pairs with another second sentence, drawn at random."""

import datasets
import numpy as np

from cosent.data.corpus import labels_of
from cosent.errors import InputError
from cosent.schema import COLUMNS, Manifest


def random_negatives(rows: datasets.Dataset, manifest: Manifest, seed: int = 42) -> datasets.Dataset:
    """Replaces the second sentence of negative pairs by one drawn at random from all second sentences of `rows`.

    The drawn sentence is neither of the pair's own, nor one that `rows` label as similar to the first, so that labels
    stay true. Rows and labels keep their order. Depends only on `seed`.

    Source: kexue.fm 8847, which claims that naive cosine losses fail only on hard negatives.

    Raises:
        InputError: labels that are not binary, or fewer sentences than a negative needs.
    """
    if manifest.label_kind != "binary":
        raise InputError(
            f"--random_negatives needs to know which pairs are negative, and {manifest.name} has {manifest.label_kind} "
            "labels. Leave it out, or take a corpus with labels of 0 and 1."
        )
    first, second, labels = rows["sentence1"][:], rows["sentence2"][:], labels_of(rows)
    similar = {pair for a, b, label in zip(first, second, labels, strict=True) if label for pair in ((a, b), (b, a))}
    drawn, rng = list(second), np.random.default_rng(seed)
    for row in np.flatnonzero(labels == 0):
        candidates = (second[index] for index in rng.integers(len(second), size=100))
        own = (first[row], second[row])
        drawn[row] = next((c for c in candidates if c not in own and (first[row], c) not in similar), None)
        if drawn[row] is None:
            raise InputError(
                f"--random_negatives: a hundred drawn sentences are all similar to {first[row]!r}, the first sentence "
                f"of row {row} of {manifest.name} train. {len(set(second))} different sentences are too few."
            )
    return rows.remove_columns("sentence2").add_column("sentence2", drawn).select_columns(list(COLUMNS))
