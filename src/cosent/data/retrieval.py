"""`RetrievalTask`: the sentences of a split to be searched, and which of them each should find."""

import hashlib
import json
import logging
from dataclasses import dataclass

import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.relevance import pool_and_relevance
from cosent.data.retrieval_arguments import RetrievalArguments
from cosent.errors import InputError
from cosent.evaluation.retrieval import Relevance, sampled

logger = logging.getLogger(__name__)

MOST_QUERIES = 20_000  # of a larger split some are drawn: the search stays much cheaper than the embedding


@dataclass(frozen=True)
class RetrievalTask:
    """The pool and the queries of a split.

    Args:
        pool: distinct sentences, those of the split first.
        relevance: queries and what each should find, as places in the pool; at most `MOST_QUERIES`.
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
        known = hashlib.sha256(json.dumps(self.pool, ensure_ascii=False).encode())
        for array in (self.relevance.queries, self.relevance.starts, self.relevance.items, self.relevance.gains):
            known.update(np.ascontiguousarray(array).tobytes())
        return known.hexdigest()


def retrieval_task(corpus: Corpus, split: str, args: RetrievalArguments) -> RetrievalTask | None:
    """The task of a split; None, with a line in the log, if no pair of it is labelled similar."""
    try:
        pool, relevance, places = pool_and_relevance(
            corpus, split, args.retrieval_from, args.retrieval_closure, args.retrieval_pool == "all"
        )
    except InputError as error:
        logger.warning("No retrieval metrics: %s", error)
        return None
    return RetrievalTask(pool, sampled(relevance, MOST_QUERIES), places)
