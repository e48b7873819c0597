"""Read and write `queries.npz`, the retrieval metrics of every query of a finished run.

They serve to compare two runs query by query, as `scores.npz` does pair by pair.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cosent.evaluation.retrieval import METRICS

QUERIES_NAME = "queries.npz"


@dataclass
class QueryMetrics:
    """Retrieval metrics of the queries of a split.

    Args:
        task: `RetrievalTask.digest`; only runs of the same task can be compared query by query.
        moments: metrics by moment (`before` and `after` training) and name, each of shape `(queries,)`.
    """

    task: str
    moments: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


Queries = dict[str, dict[str, QueryMetrics]]  # by corpus and split


def save_queries(file: str | Path, queries: Queries) -> None:
    """Writes the metrics of all queries, rounded to float32, to a compressed `.npz`."""
    arrays: dict[str, Any] = {}
    for corpus, splits in queries.items():
        for split, found in splits.items():
            arrays[f"{corpus}/{split}/task"] = np.array(found.task)
            for moment, metrics in found.moments.items():
                for name in METRICS:
                    arrays[f"{corpus}/{split}/{moment}/{name}"] = metrics[name].astype(np.float32)
    np.savez_compressed(file, **arrays)


def read_queries(file: str | Path) -> Queries:
    """Reads what `save_queries` wrote; nothing if there is no such file, as for runs before 2026-11-22."""
    queries: Queries = {}
    if not Path(file).is_file():
        return queries
    with np.load(file) as arrays:
        tasks = [key for key in arrays.files if key.endswith("/task")]
        for key in tasks:
            corpus, split, _ = key.rsplit("/", 2)
            queries.setdefault(corpus, {})[split] = QueryMetrics(str(arrays[key]))
        for key in arrays.files:
            if key not in tasks:
                corpus, split, moment, name = key.rsplit("/", 3)
                queries[corpus][split].moments.setdefault(moment, {})[name] = arrays[key]
    return queries
