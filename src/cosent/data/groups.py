"""Groups of sentences linked by similar labels, and of pairs that share sentences."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cosent.data.corpus import labels_of


def sentence_groups(rows: datasets.Dataset, similar_from: float) -> np.ndarray:
    """Number of the group of each sentence of labelled pairs, int64 of shape `(pairs, 2)`.

    Equal sentences are in one group, and so are two that are connected by pairs with a label of at least
    `similar_from`. Depends only on `rows`.
    """
    sentence = sentence_numbers(rows)
    first, second = sentence[:, similar(labels_of(rows), similar_from)]
    group = components(first, second, int(sentence.max()) + 1)
    return group.astype(np.int64)[sentence.T]


def pair_groups(rows: datasets.Dataset) -> np.ndarray:
    """Number from 0 of the group of each pair, int64 `(pairs,)`: pairs that share a sentence, also by others, have one.

    Such pairs are not independent: an interval draws whole groups.
    """
    first, second = sentence_numbers(rows)
    return np.unique(components(first, second, int(max(first.max(), second.max())) + 1)[first], return_inverse=True)[1]


def sentence_numbers(rows: datasets.Dataset) -> np.ndarray:
    """Number of each sentence, equal for equal ones, int32 of shape `(2, pairs)`."""
    columns = [rows.with_format("arrow")[name][:] for name in ("sentence1", "sentence2")]
    chunks = [chunk for column in columns for chunk in column.chunks]
    numbers = pc.dictionary_encode(pa.chunked_array(chunks))  # one dictionary for all chunks
    return np.concatenate([chunk.indices.to_numpy() for chunk in numbers.chunks]).reshape(2, -1)


def similar(labels: np.ndarray, least: float) -> np.ndarray:
    """Whether each label is at least `least`, compared in float32: a stored label of 0.7 is below 0.7 in float64."""
    return labels.astype(np.float32) >= np.float32(least)


def share_of_known_similar(groups: np.ndarray) -> float:
    """Share of (first, second) sentence pairs within one group, which are no in-batch negatives.

    Args:
        groups: result of `sentence_groups`, at least one row.
    """
    first, second = (np.bincount(column, minlength=int(groups.max()) + 1) / len(groups) for column in groups.T)
    return float(first @ second)


def components(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Connected components: the group of each of `count` nodes, `(count,)`, given edges `first`, `second`."""
    links = coo_array((np.ones(len(first), bool), (first, second)), shape=(count, count))
    return connected_components(links, directed=False)[1]
