"""Retrieval metrics: ranks of the relevant sentences among all sentences of a pool, by cosine to a query.

Equal scores, of equal vectors above all, count by their expectation: the mean over all orders of the tied sentences. So
a model that gives every sentence the same vector is at the level of chance, whatever the order of the file. Each metric
is a value per query, so that a bootstrap can draw queries; their means are what is reported.

Source: Manning, Raghavan and Schütze 2008, Introduction to Information Retrieval, chapter 8; nDCG with linear gains:
Järvelin and Kekäläinen 2002; ties: McSherry and Najork 2008, Computing Information Retrieval Performance Measures
Efficiently in the Presence of Tied Scores. Without ties, the values equal those of sentence-transformers'
InformationRetrievalEvaluator, whose gains are all 1.
"""

from dataclasses import dataclass

import numpy as np

from cosent.evaluation.significance import resampled_means

DEPTH = 100  # items that mean average precision looks at
BLOCK = 2**22  # scores in memory at a time
RECALLS = (1, 5, 10)
CUTOFF = 10  # of mrr and ndcg
METRICS = (*(f"recall_at_{k}" for k in RECALLS), f"mrr_at_{CUTOFF}", f"ndcg_at_{CUTOFF}", "map")


@dataclass(frozen=True)
class Relevance:
    """Queries and the items of a pool that are relevant to each, at least one per query, each once."""

    queries: np.ndarray  # int64 (queries,), the item that is each query; -1 for one outside the pool
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
    drawn = np.sort(np.random.default_rng(seed).permutation(len(relevance))[:most])
    places = np.concatenate([np.arange(*relevance.starts[query : query + 2]) for query in drawn])
    starts = np.r_[0, relevance.counts[drawn].cumsum()]
    return Relevance(relevance.queries[drawn], starts, relevance.items[places], relevance.gains[places])


def retrieval_metrics(queries: np.ndarray, documents: np.ndarray, relevance: Relevance) -> dict[str, np.ndarray]:
    """The `METRICS` of each query among all sentences of a pool but itself, by name; see `tied_metrics`.

    Args:
        queries, documents: float32 of shape `(pool, width)` and of length 1: every sentence of the pool as a query and
            as something to find, which differ if the prompts do.
    """
    above, tied = tied_ranks(queries[relevance.queries], documents, relevance)
    return tied_metrics(above, tied, relevance, min(DEPTH, len(documents) - 1))


def tied_ranks(queries: np.ndarray, documents: np.ndarray, relevance: Relevance) -> tuple[np.ndarray, np.ndarray]:
    """How many documents score above each of `relevance.items`, and how many as high as it, itself included.

    Two int64 arrays of the shape of `relevance.items`. The document `relevance.queries` of each query is left out. A
    score that is not finite lies below all others.

    Args:
        queries, documents: float32 of shapes `(queries, width)` and `(documents, width)`.
    """
    rows: dict[bytes, int] = {}  # a matrix product gives equal rows scores that differ by rounding
    first = np.array([rows.setdefault(vector.tobytes(), row) for row, vector in enumerate(documents)])
    above, tied = np.empty_like(relevance.items), np.empty_like(relevance.items)
    block = max(1, BLOCK // len(documents))
    for start in range(0, len(queries), block):
        products = queries[start : start + block] @ documents.T
        if len(rows) < len(documents):
            products = products[:, first]
        for query, scores in enumerate(products, start):
            if relevance.queries[query] >= 0:
                scores[relevance.queries[query]] = np.nan
            pairs = slice(*relevance.starts[query : query + 2])
            relevant = scores[relevance.items[pairs], None]
            above[pairs], tied[pairs] = np.sum(scores > relevant, axis=1), np.sum(scores == relevant, axis=1)
    lost = tied == 0
    above[lost], tied[lost] = len(documents) - 1, 1
    return above, tied


def tied_metrics(above: np.ndarray, tied: np.ndarray, relevance: Relevance, depth: int) -> dict[str, np.ndarray]:
    """The `METRICS` of each query, by name, each float64 of shape `(queries,)` and between 0 and 1.

    With n relevant items of a query, gain_r of the item at rank r (0 if it is not relevant) and hit_r = gain_r > 0:
    `recall_at_k` = hits in the first k / n; `mrr_at_10` = 1 / rank of the first hit, 0 if there is none; `ndcg_at_10` =
    sum(gain_r / log2(r + 1)) / the same sum for the best possible order; `map` = sum(hit_r * hits until r / r) /
    min(n, depth). What lies beyond depth counts as missed. Of t tied items, h of them relevant, every order is equally
    likely: a rank of theirs has a hit with probability h / t, and h - 1 of the t - 1 others are hits then.

    Args:
        above, tied: result of `tied_ranks`.
        depth: ranks that are looked at.
    """
    query = np.repeat(np.arange(len(relevance)), relevance.counts)
    order = np.lexsort((above, query))
    new = np.r_[True, (np.diff(query[order]) != 0) | (np.diff(above[order]) != 0)]
    starts = np.flatnonzero(new)  # of groups of relevant items of a query with equal scores
    hits, gains = np.diff(np.r_[starts, len(order)]), np.add.reduceat(relevance.gains[order], starts)
    query, above, tied = query[order][starts], above[order][starts], tied[order][starts]
    hits_above = starts - relevance.starts[query]

    ranks_seen = np.clip(depth - above, 0, tied)  # of each group
    group = np.repeat(np.arange(len(starts)), ranks_seen)
    place = np.arange(len(group)) - np.repeat(ranks_seen.cumsum() - ranks_seen, ranks_seen)  # from 0, in its group
    at = query[group], above[group] + place
    expected_hits, expected_gains, hits_until = np.zeros((3, len(relevance), depth))
    expected_hits[at] = (hits / tied)[group]
    expected_gains[at] = (gains / tied)[group]
    other_hits = (hits - 1) / np.maximum(tied - 1, 1)
    hits_until[at] = expected_hits[at] * (hits_above[group] + 1 + place * other_hits[group])

    count, ranks = relevance.counts, np.arange(1, depth + 1)
    metrics = {f"recall_at_{k}": expected_hits[:, :k].sum(axis=1) / count for k in RECALLS}
    best_groups = np.r_[True, np.diff(query) != 0]
    metrics[f"mrr_at_{CUTOFF}"] = reciprocal_ranks(above[best_groups], tied[best_groups], hits[best_groups], depth)
    discounts = 1 / np.log2(ranks[:CUTOFF] + 1)
    best = best_gains(relevance, len(discounts))  # (queries, cutoff)
    metrics[f"ndcg_at_{CUTOFF}"] = expected_gains[:, :CUTOFF] @ discounts / (best @ discounts)
    metrics["map"] = (hits_until / ranks).sum(axis=1) / np.minimum(count, depth)
    return metrics


def reciprocal_ranks(above: np.ndarray, tied: np.ndarray, hits: np.ndarray, depth: int) -> np.ndarray:
    """Expected 1 / rank of the first hit, 0 beyond `CUTOFF`, of `hits` among `tied` items at the ranks after `above`.

    Arrays of shape `(queries,)`, about the best group of each query. Draws without replacement: if the first j - 1 of a
    group are no hits, the next one is with probability hits / (tied - j + 1).
    """
    mean, missed = np.zeros(len(above)), np.ones(len(above))
    for rank in range(1, min(CUTOFF, depth) + 1):
        drawn = rank - 1 - above
        inside = (drawn >= 0) & (drawn <= tied - hits)
        chance = np.where(inside, missed * hits / np.where(inside, tied - drawn, 1), 0.0)
        mean, missed = mean + chance / rank, missed - chance
    return mean


def best_gains(relevance: Relevance, cutoff: int) -> np.ndarray:
    """The `cutoff` greatest gains of each query in falling order, then zeros: float64 of shape `(queries, cutoff)`."""
    query = np.repeat(np.arange(len(relevance)), relevance.counts)
    order = np.lexsort((-relevance.gains, query))
    place = np.arange(len(order)) - relevance.starts[:-1][query]
    best = np.zeros((len(relevance), cutoff))
    counted = place < cutoff
    best[query[counted], place[counted]] = relevance.gains[order][counted]
    return best


def mean_intervals(metrics: dict[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    """95% bootstrap interval of the mean of each metric `(queries,)`, by name; drawn are queries, the same for all."""
    means = resampled_means(np.stack(list(metrics.values())))  # (resamples, metrics)
    low, high = np.percentile(means, (2.5, 97.5), axis=0)
    return {name: (float(low[i]), float(high[i])) for i, name in enumerate(metrics)}
