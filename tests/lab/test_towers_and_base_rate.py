"""The benchmarks of towers and of base rates, on inputs by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.evaluation.calibration import fit_calibration
from cosent.models.auto import load_model
from cosent.models.decision import DecisionRule
from cosent.models.embedding import quantized
from lab.benchmarks import latency
from lab.benchmarks.base_rate import base_rate_table, measure, thinned
from lab.benchmarks.latency import answers, latencies, latency_table, reranking

PLACE = {"device": "CPU", "commit": "abcdef0123456789"}


def test_similar_pairs_are_thinned_out_to_the_share():
    """Fails if the share is missed, a dissimilar pair is dropped or a row is drawn twice."""
    labels = np.array([1, 0] * 190)
    rows = thinned(labels)
    assert labels[rows].mean() == pytest.approx(0.05) and len(set(rows.tolist())) == 200
    assert (labels[rows] == 0).sum() == 190


def test_a_map_is_measured_at_each_share_and_refused_elsewhere(make_corpus):
    """Fails if the true share does not lower the log loss of thinned pairs, or pairs that no mixture of similar and
    others can have made are let pass."""
    rng = np.random.default_rng(0)
    labels = (rng.random(3000) < 0.5).astype(float)
    scores = rng.normal(0.3 + 0.4 * labels, 0.1)
    split = [(f"甲{row}", f"乙{row}", label) for row, label in enumerate(labels)]
    corpus = load_corpus(str(make_corpus({"test": split}, name="own")))
    rule = DecisionRule("own", 0.5, fit_calibration(scores, labels))
    rules = {"own": rule, "foreign": replace(rule, calibration=fit_calibration(scores + 3, labels))}
    few, own, foreign = measure(corpus, scores, rules, draws=2)
    assert (few["thinned"], own["thinned"], foreign["map"]) == (True, False, "foreign")
    assert few["share"] == pytest.approx(0.05, abs=1e-3) and few["estimated"][0] == pytest.approx(0.05, abs=0.02)
    assert few["log_loss"]["true share"] < few["log_loss"]["as is"] - 0.01
    assert own["refused"] == {"300": 0.0, "1500": 0.0} and foreign["refused"]["1500"] == 1.0
    assert foreign["estimated"] == [] and list(foreign["log_loss"]) == ["as is", "true share"]
    table = base_rate_table({"rows": [own, foreign, few], "model": "similar", "draws": 2} | PLACE).splitlines()
    assert table[2].startswith("| own | own, thinned out | 0.050 |") and table[2].endswith("] |  |  |")
    assert "| refused |  | " in table[4] and table[4].endswith("| 100% |")


def test_every_tower_answers_every_case(tiny_bi, tiny_cross, monkeypatch):
    """Fails if a case is not answered, or a cross-encoder is asked about more sentences than the case says."""
    monkeypatch.setattr(latency, "TOP", 2)
    sentences = ["怎么还款", "天气好", "推荐一款车"]
    towers, asked = {}, []
    for form in (lambda model: model, quantized):
        bi, cross = (form(load_model(str(folder)).eval()) for folder in (tiny_bi, tiny_cross))
        real = cross.similarity
        counted = SimpleNamespace(similarity=lambda one, other, real=real: asked.append(len(one)) or real(one, other))
        towers |= {f"{name}, {form}": cases for name, cases in answers(bi, counted, sentences, np.eye(9, 32)).items()}
    rows = latencies(towers, sentences)
    assert [sorted(row) for row in rows[:3]] == [
        ["few", "many", "name", "pair"],
        ["few", "name", "pair"],
        ["few", "many", "name"],
    ]
    assert asked[:4] == [1, 3, 2, 2] and len(rows) == 6


def test_reranking_on_paper(make_corpus):
    """Fails if a query finds itself, more than the first are put in order, or the gain is not the difference."""
    corpus = load_corpus(
        str(make_corpus({"test": [("a", "b", 1.0), ("c", "d", 0.0), *[("e", str(n), 0.0) for n in range(30)]]}))
    )
    pool = ["a", "b", "c", "d", "e", *map(str, range(30))]
    angle = {sentence: place for place, sentence in enumerate(["a", "c", "b", "d", "e", *map(str, range(30))])}
    vectors = np.array([[np.cos(angle[one] / 40), np.sin(angle[one] / 40)] for one in pool], dtype=np.float32)
    bi = SimpleNamespace(encode=lambda sentences, **_: vectors[[pool.index(one) for one in sentences]])
    seen = []

    def similarity(one, other):
        seen.append((len(one), set(zip(one, other, strict=True))))
        return np.array([float({a, b} == {"a", "b"}) for a, b in zip(one, other, strict=True)])

    found = reranking(bi, SimpleNamespace(similarity=similarity), corpus)
    # a finds c before b, and b finds c or d before a: the right order has both first
    assert found == {"before": 0.0, "after": 1.0, "gain": [1.0, 1.0, 1.0], "queries": 2}
    assert seen[0][0] == 40 and ("a", "a") not in seen[0][1]
    rows = [{"name": "bi-encoder, int8", "pair": 1.0, "many": 1234.56}]
    table = latency_table({"rows": rows, "reranking": found, "queries": 3, "corpus": "stsb"} | PLACE)
    assert "| bi-encoder | int8 | 1.0 |  | 1,234.6 |" in table and "0.0 by the bi-encoder, 100.0 with" in table
