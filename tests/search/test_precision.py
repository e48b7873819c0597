"""Search that can say no: the simulation, the bound on its precision, and what it keeps on queries it has not seen."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import beta

from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import AnswerRule, DecisionRule
from cosent.search.precision import (
    SimulatedQueries,
    answer_rules,
    lower_bound,
    simulate,
    together,
    two_best,
    with_answers,
)


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
    assert simulated.pool == 5 and simulated.best.shape == (2, 3), "three sentences have a synonym"
    assert not simulated.right[1].any() and (simulated.best[1] <= simulated.best[0]).all()


def simulated(queries: int, seed: int) -> SimulatedQueries:
    """Right answers have higher cosines and larger leads than wrong ones, with much overlap."""
    rng = np.random.default_rng(seed)
    right = np.stack([rng.random(queries) < 0.8, np.zeros(queries, bool)])
    best = rng.normal(0.7 + 0.15 * right, 0.1)
    second = best - np.abs(rng.normal(0.05 + 0.1 * right, 0.05))
    return SimulatedQueries(best, second, right, 1000, np.arange(queries))


def rule_of(simulated: SimulatedQueries) -> DecisionRule:
    return DecisionRule("faq", 0.5, None, answers=answer_rules(simulated))


def test_the_precision_is_kept_on_other_queries():
    """Fails if more answers are wrong on queries of the same kind than was promised, nearly nothing is answered, or a
    promise is made on a handful of lucky answers: 20 right ones prove 0.87, not 0.95."""
    kept = []
    for seed in range(40):
        rule, other = rule_of(simulated(1500, seed)).answering(0.9), simulated(4000, 1000 + seed)
        answered = rule.answers(other.best, other.second)
        kept.append(other.right[answered].mean() >= 0.9)
        assert rule.precision >= 0.9 and rule.answered > 0.35
    assert sum(kept) >= 38, "a bound that is 95% sure"
    assert beta.ppf(0.05, 20, 1) < 0.95
    lucky = SimulatedQueries(
        np.linspace(0.5, 1, 20).reshape(2, 10), np.zeros((2, 10)), np.ones((2, 10), bool), 100, np.arange(10)
    )
    with pytest.raises(InputError, match=r"--precision 0.95 .* at most 0\.[0-6]"):
        rule_of(lucky).answering(0.95)
    with pytest.raises(InputError, match=r"--precision 0.5 .*cosent calibrate"):
        DecisionRule("faq", 0.5, None).answering(0.5)


def test_rules_are_found_for_the_prompts_of_a_search(make_corpus, tiny_model, pairs, monkeypatch):
    """Fails if a search by other prompts than those of the rule gets a promise, or a corpus without one takes part."""
    rule = AnswerRule(0.0, 0.9, 0.8, 0.5, 10, 20)
    monkeypatch.setattr("cosent.search.precision.answer_rules", lambda simulated: (rule,))
    corpus = load_corpus(str(make_corpus({"validation": pairs[:32]})))
    name, encoder = corpus.manifest.name, SentenceEncoder.from_pretrained(str(tiny_model))
    rules = {name: DecisionRule(name, 0.5, None)}
    assert with_answers(rules, encoder, [corpus])[name].answers == (rule,)
    assert with_answers({}, encoder, [corpus]) == {}
    rules = {name: DecisionRule(name, 0.5, None, ("query: ", ""))}
    assert with_answers(rules, encoder, [corpus]) == rules


def test_only_rules_worth_choosing_are_kept():
    """Fails if a rule is kept that another beats in both, or the choice is not the one that answers most."""
    rules = answer_rules(simulated(1500, 0))
    assert len(rules) > 5
    for first, second in pairwise(rules):
        assert first.precision < second.precision and first.answered > second.answered
    chosen = rule_of(simulated(1500, 0)).answering(0.8)
    assert chosen == max((rule for rule in rules if rule.precision >= 0.8), key=lambda rule: rule.answered)


def test_corpora_are_joined_query_by_query():
    """Fails if queries with and without answers of two corpora are mixed up, or their groups become one."""
    one, other = simulated(30, 0), simulated(50, 1)
    joint = together([one, replace(other, pool=20)])
    assert joint.pool == 20 and len(np.unique(joint.groups)) == 80
    for name in ("best", "second", "right"):
        assert getattr(joint, name)[:, :30].tolist() == getattr(one, name).tolist()
        assert getattr(joint, name)[:, 30:].tolist() == getattr(other, name).tolist()


def test_synonyms_that_fail_together_are_no_evidence():
    """Fails if thirty synonyms prove thirty times what one does, or independent answers prove less."""
    rng, error = np.random.default_rng(0), 0.05
    missed = {True: 0, False: 0}
    for _ in range(300):
        together = np.repeat(rng.random(40) < 0.8, 30)
        missed[True] += lower_bound(together, np.repeat(np.arange(40), 30), error) > 0.8
        missed[False] += lower_bound(together, np.arange(1200), error) > 0.8
    assert missed[True] <= 24 and missed[False] > 90
    alone = rng.random(600) < 0.8
    assert alone.mean() - 0.04 < lower_bound(alone, np.arange(600), error) < alone.mean()
    assert lower_bound(np.ones(600, bool), np.repeat(np.arange(20), 30), error) == pytest.approx(error ** (1 / 20))
