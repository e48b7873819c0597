"""Abstention of a search: a threshold on the best hit with a lower bound of its precision."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.groups import components
from cosent.data.retrieval import pool_and_relevance
from cosent.evaluation.significance import independent
from cosent.models.decision import JOINT, AnswerRule, DecisionRule
from cosent.models.embedding import embed

if TYPE_CHECKING:
    from cosent.models.bi_encoder import SentenceEncoder

MOST_SIMULATED_QUERIES = 5000  # drawn from the split
CONFIDENCE = 0.95  # that the precision on further queries of the same kind is at least the bound
LEADS = (0.0, 0.5, 1.0)  # weights of the lead that are tried
LEVELS = 40  # thresholds that are tried for each of them
FEW_GROUPS = 30  # of synonyms: below, all answers of a group count as one
BLOCK = 512  # queries compared with all sentences at a time


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
    """Queries of a split, first with their answers in the pool, then without: arrays of shape `(2, queries)`."""

    best: np.ndarray
    second: np.ndarray
    right: np.ndarray
    pool: int
    groups: np.ndarray  # (queries,): number of the query's group of synonyms


def simulate(
    encoder: "SentenceEncoder", corpus: Corpus, split: str, prompts: tuple[str, str], seed: int = 0
) -> SimulatedQueries:
    """Asks for each sentence of a split that has a similar one, once with all of its group in the pool, once with none.

    Without its whole group of synonyms, every answer to a query is wrong. Prompts are those of queries and sentences.
    What is cut is not said: training and calibration have said so of the same split.
    """
    pool, known, _ = pool_and_relevance(corpus, split)
    first = np.repeat(known.queries, np.diff(known.starts))
    group = components(first, known.items, len(pool))
    chosen = np.random.default_rng(seed).permutation(known.queries)[:MOST_SIMULATED_QUERIES]
    documents, _ = embed(encoder, pool, normalize=True, prefix=encoder.prefix(prompts[1]))
    vectors = documents[chosen]
    if prompts[0] != prompts[1]:
        queries = [pool[row] for row in chosen]
        vectors, _ = embed(encoder, queries, normalize=True, prefix=encoder.prefix(prompts[0]))
    itself = np.arange(len(pool))
    with_answer = two_best(vectors, documents, chosen, itself)
    without = two_best(vectors, documents, group[chosen], group)
    best, second, rows = (np.stack(both) for both in zip(with_answer, without, strict=True))
    return SimulatedQueries(best, second, group[rows] == group[chosen], len(pool), group[chosen])


def lower_bound(right: np.ndarray, groups: np.ndarray, error: float) -> float:
    """Lower bound of the share of right answers, which misses it with a probability of `error`.

    That of Clopper and Pearson, with the number of answers divided by how much more their share varies than that of
    independent ones, since synonyms are right and wrong together, and corrected for the groups that this is estimated
    from (Korn and Graubard 1998, Survey Methodology 24).

    Args:
        right: bool of shape `(answers,)`.
        groups: of shape `(answers,)`; answers of different groups are independent.
    """
    from scipy.stats import beta, t

    count, share = len(right), float(np.mean(right)) if len(right) else 0.0
    free = np.count_nonzero(np.bincount(groups)) - 1  # degrees of freedom
    if not share or free < 1:
        return 0.0
    if share == 1 or free < FEW_GROUPS:  # nothing varies, or too little to tell how much
        worth = independent(groups)
    else:
        errors = np.bincount(groups, weights=right - share)
        worth = count**2 * share * (1 - share) / (np.square(errors).sum() * (free + 1) / free)
        worth *= (t.ppf(error, count - 1) / t.ppf(error, free)) ** 2
    worth = min(worth, count)
    return float(beta.ppf(error, share * worth, (1 - share) * worth + 1))


def answer_rules(simulated: SimulatedQueries) -> tuple[AnswerRule, ...]:
    """The rules of which no other is more precise and answers more, by rising precision.

    The bound of each is `lower_bound`, corrected for the number of rules tried (Bonferroni).
    """
    rules, groups = [], np.broadcast_to(simulated.groups, simulated.best.shape)
    error = (1 - CONFIDENCE) / (len(LEADS) * LEVELS)
    for lead in LEADS:
        values = simulated.best + lead * (simulated.best - simulated.second)
        for threshold in np.unique(np.quantile(values, np.arange(LEVELS) / LEVELS)):
            answered = values >= threshold
            bound = lower_bound(simulated.right[answered], groups[answered], error)
            share = float((answered & simulated.right)[0].mean())
            rules.append(AnswerRule(lead, float(threshold), bound, share, len(simulated.groups), simulated.pool))
    best: list[AnswerRule] = []
    for rule in sorted(rules, key=lambda rule: (-rule.precision, -rule.answered)):
        if rule.precision > 0 and (not best or rule.answered > best[-1].answered):
            best.append(rule)
    return tuple(reversed(best))


def together(simulated: list[SimulatedQueries]) -> SimulatedQueries:
    """The queries of several corpora, each searched in its own pool; the smallest pool stands for all."""
    starts = np.cumsum([0, *(one.groups.max() + 1 for one in simulated[:-1])])
    groups = [one.groups + start for one, start in zip(simulated, starts, strict=True)]
    best, second, right = (
        np.concatenate([getattr(one, name) for one in simulated], axis=1) for name in ("best", "second", "right")
    )
    return SimulatedQueries(best, second, right, min(one.pool for one in simulated), np.concatenate(groups))


def with_answers(
    rules: dict[str, DecisionRule], encoder: "SentenceEncoder", corpora: Sequence[Corpus]
) -> dict[str, DecisionRule]:
    """The rules of corpora, with those for abstention.

    A search applies a rule only to the prompts that it was found with, so rules of other ones stay as they are.
    """
    prompts = encoder.prompts.for_search()
    fitting = {name for name, rule in rules.items() if rule.prompts == prompts}
    known = [corpus for corpus in corpora if corpus.manifest.name in fitting]
    simulated = {corpus.manifest.name: simulate(encoder, corpus, "validation", prompts) for corpus in known}
    if JOINT in rules and simulated:
        simulated[JOINT] = together(list(simulated.values()))
    return {
        name: replace(rule, answers=answer_rules(simulated[name])) if name in simulated else rule
        for name, rule in rules.items()
    }
