"""Figures say where they come from, and files of predictions read back as they were."""

import json
import sys

import numpy as np
import pytest
import torch

from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS, main, write_predictions
from cosent.models.cross_encoder import CrossEncoder
from cosent.run import Environment, RunRecord


@pytest.fixture
def evaluate(tiny_model, tmp_path, capsys):
    """Returns a function that evaluates the tiny model on a corpus and gives back the JSON line."""

    def run(corpus, *flags, model=tiny_model):
        main(*parse(["--model", str(model), "--corpus", str(corpus), *flags], *ARGUMENTS))
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"validation": pairs[:32], "test": pairs[32:]})


def test_the_threshold_says_where_it_comes_from(evaluate, corpus):
    """Fails if accuracy at a threshold of another corpus, or of the test split itself, passes for an honest one."""
    without = evaluate(corpus)
    assert without["threshold"] is None and "accuracy" not in without
    assert "--find_threshold" in without["threshold_from"]
    given = evaluate(corpus, "--threshold", "0.5")
    assert (given["threshold"], given["threshold_from"]) == (0.5, "--threshold")
    found = evaluate(corpus, "--find_threshold", "true")
    assert found["threshold_from"] == "made_up validation" and 0 <= found["accuracy"] <= 1
    on_grid = evaluate(corpus, "--find_threshold", "true", "--threshold_grid", "0.01")["threshold"]
    assert on_grid * 100 == pytest.approx(round(on_grid * 100))


def test_the_threshold_of_training_is_used_for_its_own_corpus_alone(evaluate, corpus, tiny_model, tmp_path):
    """Fails if a threshold found on one corpus is applied to another without a word."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    train_record = {"recipe": {}, "environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0}
    train_record |= {"seconds": 2.0, "history": []}
    RunRecord(**train_record, thresholds={"made_up": 0.25}).save(model)
    assert evaluate(corpus, model=model)["threshold"] == 0.25
    RunRecord(**train_record, thresholds={"another": 0.25}).save(model)
    assert evaluate(corpus, model=model)["threshold"] is None


def test_predictions_read_back_as_they_were(evaluate, make_corpus, tmp_path):
    """Fails if a quote or a tab inside a sentence breaks or changes the rows of the file."""
    rows = [('他说"好"', "他说\t不\r\n好", 0.0), ("好", "好", 1.0)]
    evaluate(make_corpus({"test": rows}), "--predictions", str(tmp_path / "p.tsv"), "--threshold", "0.999")
    header, first, second = [line.split("\t") for line in (tmp_path / "p.tsv").read_text().splitlines()]
    assert header == ["id", "sentence1", "sentence2", "label", "prediction", "score"]
    assert first[:4] == ["0", '他说"好"', "他说 不 好", "0"] and second[:5] == ["1", "好", "好", "1", "1"]
    with pytest.raises(InputError, match="there is no such folder"):
        evaluate(tmp_path / "corpora" / "made_up", "--predictions", str(tmp_path / "nowhere" / "p.tsv"))


def test_predictions_agree_with_the_metrics_at_the_threshold(tmp_path):
    """Fails if rounding calls a score similar in the file that the metrics call different: 0.7 in float32 is below."""
    rows = [{"sentence1": "a", "sentence2": "b", "label": 1.0}]
    write_predictions(str(tmp_path / "p.tsv"), rows, np.array([0.7], dtype=np.float32), 0.7)
    assert (tmp_path / "p.tsv").read_text().splitlines()[1].split("\t")[4] == "0"


@pytest.mark.parametrize("flags", [("--threshold", "0.9", "--find_threshold", "true"), ("--threshold_grid", "0.1")])
def test_flags_that_exclude_each_other(evaluate, corpus, flags):
    """Fails if one of two contradictory flags is ignored in silence."""
    with pytest.raises(InputError, match="--threshold"):
        evaluate(corpus, *flags)


def test_the_threshold_is_that_of_validation(evaluate, make_corpus, pairs):
    """Fails if it is found on the split that is scored: there, the labels are turned round."""
    turned = [(a, b, 1 - label) for a, b, label in pairs[:32]]
    corpus = make_corpus({"validation": pairs[:32], "test": turned})
    honest = evaluate(corpus, "--find_threshold", "true")["threshold"]
    assert honest == evaluate(corpus, "--find_threshold", "true", "--split", "validation")["threshold"]
    assert (
        honest != evaluate(make_corpus({"validation": turned, "test": turned}), "--find_threshold", "true")["threshold"]
    )


def test_a_threshold_on_grades_is_refused(evaluate, make_corpus, pairs):
    """Fails if --threshold is ignored for STS-B."""
    graded = make_corpus({"test": [(a, b, 5 * y) for a, b, y in pairs]}, "graded", 5.0)
    with pytest.raises(InputError, match="accuracy at a threshold needs 0 and 1"):
        evaluate(graded, "--threshold", "0.5")


def test_int8_ranks_alike(evaluate, corpus):
    """Fails if --int8 changes the ranking beyond rounding, or nothing at all."""
    exact, int8 = evaluate(corpus), evaluate(corpus, "--int8", "true")
    assert int8["spearman"] == pytest.approx(exact["spearman"], abs=0.02)
    assert int8["pearson"] != exact["pearson"]


def test_one_label_gives_null_not_nan(evaluate, make_corpus):
    """Fails if the JSON line is no JSON."""
    with pytest.warns(UserWarning, match="labels are equal"):
        assert evaluate(make_corpus({"test": [("好", "坏", 1.0), ("红", "绿", 1.0)]}))["spearman"] is None


def test_a_cross_encoder_is_recognised(evaluate, corpus, pairs, tiny_model, tmp_path):
    """Fails if a saved cross-encoder is pooled into cosines, or its predictions are not its scores."""
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=2).save_pretrained(tmp_path / "model")
    ours = CrossEncoder.from_pretrained(str(tmp_path / "model"))
    flags = ("--find_threshold", "true", "--predictions", str(tmp_path / "p.tsv"))
    result = evaluate(corpus, *flags, model=tmp_path / "model")
    written = [float(line.split("\t")[-1]) for line in (tmp_path / "p.tsv").read_text().splitlines()[1:]]
    first, second, _ = zip(*pairs[32:], strict=True)
    assert written == pytest.approx(ours.similarity(list(first), list(second)), abs=1e-6)
    assert len(set(written)) > 16 and 0 <= result["accuracy"] <= 1
    assert evaluate(corpus, "--int8", "true", model=tmp_path / "model")["pairs"] == 32
    with pytest.raises(InputError, match="logits of a cross-encoder have no bounds"):
        evaluate(corpus, *flags, "--threshold_grid", "0.01", model=tmp_path / "model")


def test_a_batch_of_nothing_is_refused(evaluate, corpus):
    """Fails if --batch_size 0 ends in a stack trace."""
    with pytest.raises(InputError, match="--batch_size must be at least 1, got 0"):
        evaluate(corpus, "--batch_size", "0")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file")
def test_a_full_disk_leaves_no_half_of_the_predictions(tmp_path, small_files):
    """Fails if rows are missing at the end of a file, and nothing says so but a traceback."""
    rows = [{"sentence1": "好", "sentence2": "好", "label": 1.0}] * 5000
    with small_files, pytest.raises(InputError, match=r"out.tsv could not be written .* MiB are free"):
        write_predictions(str(tmp_path / "out.tsv"), rows, np.ones(5000, dtype=np.float32), None)
    assert not list(tmp_path.iterdir())


def test_int8_needs_no_machine_without_a_gpu(evaluate, corpus, monkeypatch):
    """Fails if --int8, which is for the CPU, sends the model to a GPU first, and is then refused."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert evaluate(corpus, "--int8")["int8"]
