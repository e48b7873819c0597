"""Pairs of a sentence with itself: read twice, with two dropouts, they are the positives of unsupervised SimCSE."""

from collections.abc import Iterable

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from cosent.schema import COLUMNS

FEATURES = datasets.Features(
    zip(COLUMNS, (datasets.Value("string"), datasets.Value("string"), datasets.Value("float32")), strict=True)
)


def twice(sentences: Iterable[str], label: float = 1.0) -> datasets.Dataset:
    """Each distinct sentence as a pair with itself, in the order of their first occurrence.

    Args:
        label: label of all pairs.
    """
    column = pc.unique(pa.array(sentences, pa.string()))  # both columns share its memory
    labels = pa.array([label] * len(column), pa.float32())
    return datasets.Dataset(pa.table([column, column, labels], names=list(COLUMNS)).cast(FEATURES.arrow_schema))
