"""Search that can say no: the simulation, the bound on its precision, and what it keeps on queries it has not seen."""

import numpy as np
import pytest
from scipy.stats import beta

from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.search.precision import SimulatedQueries, fit_rule, simulate, two_best


def test_two_best_on_paper():
    """Fails if a query finds itself or a hidden synonym, or its lead is over another sentence than the second best."""
    vectors = np.array([[1, 0], [0.8, 0.6], [0.6, 0.8], [0, 1]], np.float32)
    group = np.array([0, 0, 1, 2])
    best, second, rows = two_best(vectors[:2], vectors, group[:2], group)
    np.testing.assert_allclose(best, [0.6, 0.96], atol=1e-6)
    np.testing.assert_allclose(second, [0.0, 0.6], atol=1e-6)
    assert rows.tolist() == [2, 2]


def test_every_answer_is_wrong_where_the_group_is_hidden(make_corpus, tiny_model):
    """Fails if a synonym of a synonym counts as wrong, or a query keeps an answer that the simulation should hide."""
    rows = [("怎么还款", "如何还款", 1.0), ("如何还款", "还款怎么操作", 1.0), ("今天天气很好", "红色的苹果", 0.0)]
    corpus = load_corpus(str(make_corpus({"validation": rows})))
    simulated = simulate(SentenceEncoder.from_pretrained(str(tiny_model)), corpus, "validation", ("", ""))
    assert simulated.pool == 5 and len(simulated.best) == 6, "three sentences have a synonym"
    assert not simulated.right[3:].any() and (simulated.best[3:] <= simulated.best[:3]).all()


def simulated(queries: int, seed: int) -> SimulatedQueries:
    """Right answers have higher cosines and larger leads than wrong ones, with much overlap."""
    rng = np.random.default_rng(seed)
    right = np.r_[rng.random(queries) < 0.8, np.zeros(queries, bool)]
    best = rng.normal(0.7 + 0.15 * right, 0.1)
    return SimulatedQueries(best, best - np.abs(rng.normal(0.05 + 0.1 * right, 0.05)), right, 1000)


def test_the_precision_is_kept_on_other_queries():
    """Fails if more answers are wrong on queries of the same kind than was promised, nearly nothing is answered, or a
    promise is made on a handful of lucky answers: 20 right ones prove 0.87, not 0.95."""
    kept = []
    for seed in range(40):
        rule, other = fit_rule(simulated(1500, seed), 0.9), simulated(4000, 1000 + seed)
        answered = rule.answers(other.best, other.second)
        kept.append(other.right[answered].mean() >= 0.9)
        assert rule.precision >= 0.9 and rule.answered > 0.35
    assert sum(kept) >= 38, "a bound that is 95% sure"
    assert beta.ppf(0.05, 20, 1) < 0.95
    lucky = SimulatedQueries(np.linspace(0.5, 1, 20), np.zeros(20), np.ones(20, bool), 100)
    with pytest.raises(InputError, match="--precision 0.95"):
        fit_rule(lucky, 0.95)
