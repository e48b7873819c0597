"""The retrieval task of a split: find the similar sentences of each sentence."""

import hashlib
import json
import logging
from dataclasses import dataclass

import numpy as np

from cosent.data.corpus import labels_of, similar
from cosent.data.labels import Labels
from cosent.evaluation.retrieval import Relevance, sampled

logger = logging.getLogger(__name__)

MOST_SPLIT_QUERIES = 20_000  # of a larger split some are drawn: the search stays much cheaper than the embedding


@dataclass(frozen=True)
class RetrievalTask:
    """The pool and the queries of a split.

    Args:
        pool: distinct sentences of the split.
        relevance: queries and what each should find, as places in the pool; at most `MOST_SPLIT_QUERIES`.
        places: int64 of shape `(pairs, 2)`: places in the pool of the sentences of each pair of the split.
    """

    pool: list[str]
    relevance: Relevance
    places: np.ndarray

    @property
    def size(self) -> dict[str, int]:
        return {"queries": len(self.relevance), "pool": len(self.pool)}

    @property
    def digest(self) -> str:
        """Identity of pool, queries and relevant sentences: results of equal ones can be compared query by query."""
        digest = hashlib.sha256(json.dumps(self.pool, ensure_ascii=False).encode())
        for array in (self.relevance.queries, self.relevance.starts, self.relevance.items, self.relevance.gains):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def retrieval_task(rows, labels: Labels, where: str) -> RetrievalTask | None:
    """The task of rows with the columns of the contract; None, with a line in the log, if no pair is labelled similar.

    Every sentence of a pair from `Labels.similar_from` on is a query for the other one. The gain of a sentence is its
    label: 1 of binary labels. Of a pair that is labelled more than once, the greatest label is kept; a sentence with
    itself is no pair.

    Args:
        where: the rows, in words.
    """
    grades, least = labels_of(rows), labels.similar_from
    place: dict[str, int] = {}
    columns = ([place.setdefault(s, len(place)) for s in rows[name][:]] for name in ("sentence1", "sentence2"))
    places = np.array(list(columns)).T
    to_find = similar(grades, least) & (places[:, 0] != places[:, 1])
    if not to_find.any():
        message = "No retrieval metrics: %s has no two different sentences with a label from %g. Add --retrieval false."
        logger.warning(message, where, least)
        return None
    (first, second), gains = places[to_find].T, grades[to_find].astype(np.float64)
    relevance = relevant_rows(np.r_[first, second], np.r_[second, first], np.r_[gains, gains])
    return RetrievalTask(list(place), sampled(relevance, MOST_SPLIT_QUERIES), places)


def relevant_rows(query: np.ndarray, item: np.ndarray, gain: np.ndarray) -> Relevance:
    """`Relevance` of pairs of query and item in any order; of repeated ones the greatest gain is kept."""
    order = np.lexsort((-gain, item, query))
    query, item, gain = query[order], item[order], gain[order]
    new = np.r_[True, (query[1:] != query[:-1]) | (item[1:] != item[:-1])]
    query, item, gain = query[new], item[new], gain[new]
    queries, starts = np.unique(query, return_index=True)
    return Relevance(queries, np.r_[starts, len(query)], item, gain)
