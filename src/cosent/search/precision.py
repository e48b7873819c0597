"""When a search should answer nothing: a threshold on its best hit, whose precision has a lower bound."""

from dataclasses import dataclass

import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.groups import components
from cosent.data.retrieval import pool_and_relevance
from cosent.errors import InputError

MOST_SIMULATED_QUERIES = 5000  # drawn from the split
CONFIDENCE = 0.95  # that the precision on further queries of the same kind is at least the bound
LEADS = (0.0, 0.5, 1.0)  # weights of the lead that are tried
LEVELS = 40  # thresholds that are tried for each of them
BLOCK = 512  # queries compared with all sentences at a time


@dataclass(frozen=True)
class AnswerRule:
    """Answer if `best + lead * (best - second) >= threshold`, of the two highest cosines of a query."""

    lead: float
    threshold: float
    precision: float  # lower bound of the share of answers that are right, `CONFIDENCE` sure
    answered: float  # share of the queries that had an answer and were given one
    queries: int  # that it was fitted on, each with and without its answers in the pool
    pool: int  # sentences that were searched: among many more of them, a wrong one comes closer

    def answers(self, best: np.ndarray | float, second: np.ndarray | float) -> np.ndarray | bool:
        """Whether each query is answered: bool of the shape of both."""
        return best + self.lead * (best - second) >= self.threshold


def two_best(queries: np.ndarray, vectors: np.ndarray, hidden: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, ...]:
    """The two highest cosines of each query, and the row of the highest: three arrays of shape `(queries,)`.

    Rows whose `group` `(rows,)` is the `hidden` one of a query `(queries,)` are not found.
    """
    parts = []
    for start in range(0, len(queries), BLOCK):
        scores = queries[start : start + BLOCK] @ vectors.T
        scores[hidden[start : start + BLOCK, None] == group] = -1.0
        rows = scores.argmax(axis=1)
        best = np.take_along_axis(scores, rows[:, None], axis=1)[:, 0]
        np.put_along_axis(scores, rows[:, None], -1.0, axis=1)
        parts.append((best, scores.max(axis=1), rows))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@dataclass(frozen=True)
class SimulatedQueries:
    """Queries of a split, first with their answers in the pool, then without: arrays of shape `(2 * queries,)`."""

    best: np.ndarray
    second: np.ndarray
    right: np.ndarray
    pool: int


def simulate(encoder, corpus: Corpus, split: str, prompts: tuple[str, str], seed: int = 0) -> SimulatedQueries:
    """Asks for each sentence of a split that has a similar one, once with all of its group in the pool, once with none.

    Without its whole group of synonyms, every answer to a query is wrong. Prompts are those of queries and sentences.
    """
    pool, known, _ = pool_and_relevance(corpus, split)
    first = np.repeat(known.queries, np.diff(known.starts))
    group = components(first, known.items, len(pool))
    chosen = np.random.default_rng(seed).permutation(known.queries)[:MOST_SIMULATED_QUERIES]
    documents = encoder.encode(pool, normalize_embeddings=True, prompt=prompts[1])
    vectors = documents[chosen]
    if prompts[0] != prompts[1]:
        vectors = encoder.encode([pool[row] for row in chosen], normalize_embeddings=True, prompt=prompts[0])
    itself = np.arange(len(pool))
    with_answer = two_best(vectors, documents, chosen, itself)
    without = two_best(vectors, documents, group[chosen], group)
    best, second, rows = (np.concatenate(both) for both in zip(with_answer, without, strict=True))
    return SimulatedQueries(best, second, group[rows] == np.tile(group[chosen], 2), len(pool))


def fit_rule(simulated: SimulatedQueries, precision: float) -> AnswerRule:
    """The rule that answers most queries among those whose precision is at least the one asked for.

    The bound is that of Clopper and Pearson, corrected for the number of rules tried (Bonferroni).
    """
    from scipy.stats import beta

    rules, half = [], len(simulated.best) // 2
    error = (1 - CONFIDENCE) / (len(LEADS) * LEVELS)
    for lead in LEADS:
        values = simulated.best + lead * (simulated.best - simulated.second)
        for threshold in np.quantile(values, np.arange(LEVELS) / LEVELS):
            answered = values >= threshold
            right, given = int(simulated.right[answered].sum()), int(answered.sum())
            bound = float(beta.ppf(error, right, given - right + 1)) if right else 0.0
            if bound >= precision:
                share = float((answered & simulated.right)[:half].mean())
                rules.append(AnswerRule(lead, float(threshold), bound, share, half, simulated.pool))
    if not rules:
        raise InputError(f"--precision {precision:g} is not reached on {half:,} queries. Lower it, or train on more.")
    return max(rules, key=lambda rule: rule.answered)
