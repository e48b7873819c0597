"""Retrieval metrics: relevant sentences among the nearest ones of a query.

`rows` (`numpy.ndarray` of shape `(queries, depth)`) are the retrieved items of each query, best first, without the
query itself. Each metric is a value per query, so that a bootstrap can draw queries; their means are what is reported.

Source: Manning, Raghavan and Schütze 2008, Introduction to Information Retrieval, chapter 8; nDCG with linear gains:
Järvelin and Kekäläinen 2002. The values equal those of sentence-transformers' InformationRetrievalEvaluator, whose
gains are all 1.
"""

from dataclasses import dataclass

import numpy as np

from cosent.evaluation.significance import resampled_means

DEPTH = 100  # items that mean average precision looks at
RECALLS = (1, 5, 10)
CUTOFF = 10  # of mrr and ndcg
METRICS = (*(f"recall_at_{k}" for k in RECALLS), f"mrr_at_{CUTOFF}", f"ndcg_at_{CUTOFF}", "map")
NAMES = dict(zip(METRICS, ("Recall@1", "Recall@5", "Recall@10", "MRR@10", "nDCG@10", "MAP"), strict=True))


@dataclass(frozen=True)
class Relevance:
    """Queries and the items of a pool that are relevant to each, at least one per query, each once."""

    queries: np.ndarray  # int64 (queries,), the item that is each query
    starts: np.ndarray  # int64 (queries + 1,): those of query q are `items[starts[q]:starts[q + 1]]`
    items: np.ndarray  # int64 (relevant in all,)
    gains: np.ndarray  # float64 (relevant in all,), greater than 0: how relevant each is

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def counts(self) -> np.ndarray:
        """Number of relevant items of each query, int64 of shape `(queries,)`."""
        return np.diff(self.starts)


def sampled(relevance: Relevance, most: int, seed: int = 0) -> Relevance:
    """At most `most` of the queries, drawn at random by `seed` alone."""
    if len(relevance) <= most:
        return relevance
    chosen = np.sort(np.random.default_rng(seed).permutation(len(relevance))[:most])
    places = np.concatenate([np.arange(*relevance.starts[query : query + 2]) for query in chosen])
    starts = np.r_[0, relevance.counts[chosen].cumsum()]
    return Relevance(relevance.queries[chosen], starts, relevance.items[places], relevance.gains[places])


def retrieval_metrics(rows: np.ndarray, relevance: Relevance) -> dict[str, np.ndarray]:
    """The `METRICS` of each query, by name, each float64 of shape `(queries,)` and between 0 and 1.

    With n relevant items of a query, gain_r of the item at rank r (0 if it is not relevant) and hit_r = gain_r > 0:
    `recall_at_k` = hits in the first k / n; `mrr_at_10` = 1 / rank of the first hit, 0 if there is none; `ndcg_at_10` =
    sum(gain_r / log2(r + 1)) / the same sum for the best possible order; `map` = sum(hit_r * hits until r / r) /
    min(n, depth). In `rows`, -1 is nothing; what lies beyond depth counts as missed.
    """
    if len(rows) != len(relevance):
        raise ValueError(f"Expected retrieved items of {len(relevance)} queries, got {len(rows)}.")
    gains = gains_of(rows, relevance)  # (queries, depth)
    hits, count = gains > 0, relevance.counts
    ranks = np.arange(1, rows.shape[1] + 1)
    metrics = {f"recall_at_{k}": hits[:, :k].sum(axis=1) / count for k in RECALLS}
    metrics[f"mrr_at_{CUTOFF}"] = (hits / ranks)[:, :CUTOFF].max(axis=1)
    discounts = 1 / np.log2(ranks[:CUTOFF] + 1)
    best = best_gains(relevance, len(discounts))  # (queries, cutoff)
    metrics[f"ndcg_at_{CUTOFF}"] = gains[:, :CUTOFF] @ discounts / (best @ discounts)
    precision = hits.cumsum(axis=1) / ranks
    metrics["map"] = (hits * precision).sum(axis=1) / np.minimum(count, rows.shape[1])
    return metrics


def gains_of(rows: np.ndarray, relevance: Relevance) -> np.ndarray:
    """Gain of each retrieved item, 0 for row -1 and items that are not relevant: float64 of the shape of `rows`."""
    items = int(max(rows.max(initial=0), relevance.items.max(initial=0))) + 1
    query = np.repeat(np.arange(len(relevance)), relevance.counts)
    known = query * items + relevance.items  # a number for each query with each of its items
    order = np.argsort(known)
    asked = np.arange(len(rows))[:, None] * items + rows
    place = np.searchsorted(known, asked, sorter=order).clip(max=len(known) - 1)
    return np.where((rows >= 0) & (known[order[place]] == asked), relevance.gains[order[place]], 0.0)


def best_gains(relevance: Relevance, cutoff: int) -> np.ndarray:
    """The `cutoff` greatest gains of each query in falling order, then zeros: float64 of shape `(queries, cutoff)`."""
    query = np.repeat(np.arange(len(relevance)), relevance.counts)
    order = np.lexsort((-relevance.gains, query))
    place = np.arange(len(order)) - relevance.starts[:-1][query]
    best = np.zeros((len(relevance), cutoff))
    kept = place < cutoff
    best[query[kept], place[kept]] = relevance.gains[order][kept]
    return best


def mean_intervals(metrics: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """95% bootstrap interval of the mean of each metric `(queries,)`, by name; drawn are queries, the same for all."""
    means = resampled_means(np.stack(list(metrics.values())))  # (resamples, metrics)
    low, high = np.percentile(means, (2.5, 97.5), axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(metrics)}
