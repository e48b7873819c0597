"""Metrics of a corpus, a labelled file or a search, where their threshold comes from, and two models compared."""

import shutil

import numpy as np
import pytest

from cosent.data.writers import table_writer
from cosent.errors import InputError
from cosent.evaluation.significance import spearman
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import DecisionRule
from tests.conftest import CALIBRATION, SENTENCES, save_record


@pytest.fixture
def of_corpus(evaluate):
    """As `evaluate`, on a prepared corpus; only the JSON."""
    return lambda corpus, *flags, **model: evaluate("--corpus", corpus, *flags, **model)[0]


@pytest.fixture
def trained(tiny_model, tmp_path):
    """Returns a function that writes a model folder whose run found these thresholds."""
    shutil.copytree(tiny_model, tmp_path / "model")

    def write(**thresholds):
        save_record(tmp_path / "model", thresholds)
        return tmp_path / "model"

    return write


@pytest.fixture
def labelled(tmp_path, pairs):
    """Returns a function that writes the pairs as a file of that ending, with an id in front."""

    def write(ending):
        path = tmp_path / f"mine{ending}"
        with table_writer(path, ("id", "q1", "q2", "same")) as append:
            append([{"id": number, "q1": a, "q2": b, "same": y} for number, (a, b, y) in enumerate(pairs)])
        return path

    return write


COLUMNS = ("--text_columns", "q1", "q2", "--label_column", "same")


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"validation": pairs[:32], "test": pairs[32:]})


def test_the_threshold_of_training_is_used_for_its_own_corpus_alone(evaluate, of_corpus, corpus, labelled, trained):
    """Fails if a threshold found on one corpus is applied to another without a word, or to no file of the user."""
    file = ("--pairs", labelled(".csv"), *COLUMNS)
    assert of_corpus(corpus, model=trained(made_up=0.25))["threshold"] == 0.25
    assert evaluate(*file, model=trained(faq=0.25))[0]["threshold"] == 0.25
    without, table = evaluate("--corpus", corpus, model=trained(another=0.25))
    assert (
        without["threshold"] is None and "accuracy" not in without and "cosent calibrate" in without["threshold_from"]
    )
    assert "brier" not in without and "brier" not in table
    several = trained(faq=0.25, other=0.5)
    assert evaluate(*file, model=several)[0]["threshold"] is None
    assert evaluate(*file, "--corpus", "other", model=several)[0]["threshold"] == 0.5


def test_ties_and_tiny_splits_are_shown(evaluate, make_corpus, pairs):
    """Fails if Spearman hides how much its labels allow, or a single similar pair makes a metric like any other."""
    lonely = [*[pair for pair in pairs if pair[2] == 0][:31], pairs[0]]
    result, table = evaluate("--corpus", make_corpus({"validation": pairs[:32], "test": lonely}))
    swapped = len({frozenset(pair[:2]) for pair in lonely})  # pairs in both orders, whose cosines are equal
    labels, scores = 32**3 - 32 - (31**3 - 31), 32**3 - 32 - (32 - swapped) * (2**3 - 2)
    assert swapped < 32 and result["spearman_at_most"] == pytest.approx((labels / scores) ** 0.5)
    assert f"of at most {result['spearman_at_most']:.4f}" in table and 0 <= result["auc"] <= 1
    assert (
        table.splitlines()[-1].startswith("warning: made_up test")
        and "31 of label 0, 1 of label 1" in table.splitlines()[-1]
    )


def test_one_label_gives_null_not_nan(of_corpus, make_corpus):
    """Fails if the JSON line is no JSON."""
    with pytest.warns(UserWarning, match="labels are equal"):
        assert of_corpus(make_corpus({"test": [("好", "坏", 1.0), ("红", "绿", 1.0)]}))["spearman"] is None


def test_a_cross_encoder_is_recognised(of_corpus, corpus, pairs, tiny_model, tmp_path):
    """Fails if a saved cross-encoder is pooled into cosines."""
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=2).save_pretrained(tmp_path / "model")
    first, second, labels = map(list, zip(*pairs[32:], strict=True))
    scores = CrossEncoder.from_pretrained(str(tmp_path / "model")).similarity(first, second)
    result = of_corpus(corpus, model=tmp_path / "model")
    assert result["spearman"] == pytest.approx(spearman(scores, labels), abs=1e-6)
    assert len(set(scores.tolist())) > 16
    assert of_corpus(corpus, "--int8", "true", model=tmp_path / "model")["pairs"] == 32


def test_a_file_counts_as_the_corpus_it_would_be(evaluate, labelled, make_corpus, pairs, trained):
    """Fails if a row of some format is lost or gets another label: every figure is that of the prepared corpus."""
    model = trained(faq=0.5)
    prepared, _ = evaluate("--corpus", make_corpus({"test": pairs}, name="faq"), model=model)
    path = labelled(".xlsx")
    result, table = evaluate("--pairs", path, *COLUMNS, "--corpus", "faq", model=model)
    of_file = ("file", "seconds")
    assert {k: v for k, v in result.items() if k not in of_file} == {
        k: v for k, v in prepared.items() if k not in of_file
    }
    assert result["file"] == str(path) and f"on {path} (64 pairs)" in table
    assert {"accuracy", "spearman", "map"} <= result.keys()


def queries_of(tmp_path, rows):
    """A sheet of four questions, and a file of queries with their answers."""
    sheet, queries = tmp_path / "faq.csv", tmp_path / "queries.csv"
    replies = zip(SENTENCES, ("一", "二", "三", "4"), strict=False)
    sheet.write_text("question,reply\n" + "".join(f"{text},{reply}\n" for text, reply in replies), "utf-8")
    queries.write_text("query,answer\n" + "".join(f"{query},{answer}\n" for query, answer in rows), "utf-8")
    return "--text", sheet, "--text_column", "question", "--queries", queries


def test_answers_of_a_search_over_thresholds(evaluate, trained, tmp_path):
    """Fails if a right answer is counted as wrong or as missing, a query without an answer is left out, or a threshold
    is that of another flag than `search` has."""
    answers = (SENTENCES[0], "二", "一", "4", "")
    rows = list(zip((*SENTENCES[:4], SENTENCES[5]), answers, strict=True))
    result, table = evaluate(*queries_of(tmp_path, rows))
    first, *limited = result["thresholds"]
    assert result["flag"] == "min_score" and "no decision rule" in table
    assert first == {"threshold": None, "right": 3, "wrong": 1, "nothing": 0, "answered": 1}
    for row, stricter in zip(limited, limited[1:], strict=False):
        assert row["threshold"] < stricter["threshold"] and row["right"] >= stricter["right"]
        assert row["right"] + row["wrong"] + row["nothing"] == 4 and row["answered"] <= 1
    result, table = evaluate(*queries_of(tmp_path, rows), model=trained(faq=0.5))
    assert result["flag"] == "min_probability" and "--min_probability 0.5" in table and "no prob" not in table
    assert [row["threshold"] for row in result["thresholds"][1:]] == pytest.approx(np.arange(1, 10) / 10)
    passed = DecisionRule("faq", 0.5, CALIBRATION).probabilities([1.0])[0] >= 0.5  # the cosine of equal sentences is 1
    assert result["thresholds"][5]["right"] == 3 * passed
    with pytest.raises(InputError, match="queries.csv, line 3: .*五"):
        evaluate(*queries_of(tmp_path, [(SENTENCES[0], "一"), (SENTENCES[1], "五")]))


def test_two_models_on_the_same_rows(evaluate, corpus, make_corpus, tiny_bi, tiny_cross, tmp_path):
    """Fails if a difference is that of other rows or of the wrong sign, or two towers cannot be compared."""
    rows = [(f"{SENTENCES[i % 8]}{i}", f"{SENTENCES[i % 5]}{i}", float(i % 2)) for i in range(24)]
    separate = make_corpus({"test": rows}, name="separate")
    result, table = evaluate("--corpus", separate, "--baseline", tiny_cross, model=tiny_bi)
    gap, low, high = result["differences"]["spearman"]
    assert gap == pytest.approx(result["spearman"] - result["baseline"]["spearman"]) and low < gap < high
    assert "map" not in result["differences"] and f"{tiny_bi} minus {tiny_cross}" in table and f"{gap:+.4f}" in table
    assert evaluate("--corpus", separate, "--baseline", tiny_bi, model=tiny_bi)[0]["differences"]["map"] == [0, 0, 0]
    linked, table = evaluate("--corpus", corpus, "--baseline", tiny_cross, model=tiny_bi)
    assert linked["differences"]["spearman"] is None and "too few separate pairs" in table
    rows = [(sentence, sentence) for sentence in SENTENCES[:4]]
    searched, table = evaluate(*queries_of(tmp_path, rows), "--baseline", tiny_cross, model=tiny_bi)
    assert searched["thresholds"][0]["right"] == 4
    assert searched["differences"]["nearest_right"][0] == 1 - searched["baseline"]["thresholds"][0]["right"] / 4
