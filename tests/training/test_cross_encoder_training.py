"""The main job with the second tower, on NLI, on several corpora, and what it refuses."""

import json
import logging

import numpy as np
import pytest
import sentence_transformers

from cosent.errors import InputError
from cosent.evaluation.metrics import find_threshold
from cosent.models.cross_encoder import CrossEncoder

CROSS_ENCODER = ("--tower", "cross_encoder", "--num_train_epochs", "1")


@pytest.fixture
def splits(pairs):
    return {"train": pairs, "validation": pairs[:32], "test": pairs[32:]}


@pytest.fixture
def similar(make_corpus, splits):
    return make_corpus(splits, name="similar")


@pytest.fixture
def nli(make_corpus, splits):
    """Labels 0, 1, 2: how many of the two sentences have five characters; the validation split has them all."""
    rows = [(a, b, float((len(a) == 5) + (len(b) == 5))) for a, b, _ in splits["train"]]
    labelled = {"train": rows, "validation": rows[16:48], "test": rows[32:]}
    return make_corpus(labelled, "nli", 2.0, name="nli")


def record_of(folder) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_training_ends_with_a_classifier_that_others_load(train, similar, pairs):
    """Fails if the job with the other tower does not learn, or leaves a folder that scores differently when served."""
    folder = train(similar, *CROSS_ENCODER, "--num_train_epochs", "16", "--segment_ids", "zero")
    record = record_of(folder)
    before, after = record["before"]["similar"], record["after"]["similar"]
    assert after["validation"]["spearman"] > before["validation"]["spearman"] + 0.2
    assert "similar" in record["thresholds"] and record["recipe"]["tower"] == "cross_encoder"
    served = sentence_transformers.CrossEncoder(str(folder), device="cpu").predict([pair[:2] for pair in pairs[32:]])
    ours = CrossEncoder.from_pretrained(str(folder)).similarity(*zip(*(pair[:2] for pair in pairs[32:]), strict=True))
    np.testing.assert_allclose(served, ours, atol=1e-5)


def test_the_oracle_is_the_best_threshold_on_test(train, similar, pairs):
    """Fails if the accuracy that peers report, chosen on test, is missing or passes for the honest one."""
    folder = train(similar, *CROSS_ENCODER)
    test, threshold = record_of(folder)["after"]["similar"]["test"], record_of(folder)["thresholds"]["similar"]
    first, second, labels = zip(*pairs[32:], strict=True)
    scores = CrossEncoder.from_pretrained(str(folder)).similarity(list(first), list(second))
    assert test["oracle_accuracy"] == pytest.approx(find_threshold(scores, labels)[1])
    assert test["accuracy"] == pytest.approx(np.mean((scores >= threshold) == np.array(labels)))
    assert test["accuracy"] <= test["oracle_accuracy"]


def test_resuming_continues_where_it_stopped(train, similar):
    """Fails if a resumed cross-encoder ends elsewhere than one that was never interrupted."""
    flags = (*CROSS_ENCODER, "--loss", "ce", "--num_train_epochs", "2")
    whole = train(similar, *flags, output="whole")
    resumed = train(similar, *flags, "--resume_from_checkpoint", str(whole / "checkpoint-4"), output="resumed")
    end = "checkpoint-8/model.safetensors"
    assert (whole / end).read_bytes() == (resumed / end).read_bytes()
    with pytest.raises(InputError, match="started with other settings: loss ce, not cosent"):
        train(similar, *CROSS_ENCODER, "--resume_from_checkpoint", str(whole / "checkpoint-4"), output="other")


@pytest.mark.parametrize("loss, logits", [("ce3", 3), ("cosent", 1)])
def test_nli_is_scored_in_its_order(train, nli, loss, logits):
    """Fails if a three-class model has no score, or one that does not rise from contradiction to entailment."""
    folder = train(nli, *CROSS_ENCODER, "--loss", loss, "--num_train_epochs", "8")
    assert record_of(folder)["after"]["nli"]["validation"]["spearman"] > 0.3
    config = CrossEncoder.from_pretrained(str(folder)).model.config
    assert config.num_labels == logits and (config.label2id.get("entailment") == 2) == (loss == "ce3")


def test_transfer_selects_on_other_corpora(train, nli, similar, make_corpus, pairs):
    """Fails if the best epoch of an NLI run is chosen on NLI, or one of the tested corpora is left out."""
    graded = make_corpus({"validation": pairs[:32], "test": [(a, b, 5 * y) for a, b, y in pairs]}, "graded", 5.0, "g")
    record = record_of(train(nli, "--eval_corpora", str(similar), str(graded), "--num_train_epochs", "1"))
    assert set(record["after"]) == {"nli", "similar", "g"} and set(record["thresholds"]) == {"similar"}
    evaluated = {key for entry in record["history"] for key in entry if key.endswith("_spearman")}
    assert evaluated == {"eval_similar_spearman", "eval_g_spearman", "eval_spearman"}
    with pytest.raises(InputError, match="--eval_corpora names similar more than once"):
        train(nli, "--eval_corpora", str(similar), str(similar), output="other")


def test_corpora_with_weights(train, nli, similar):
    """Fails if --corpus_weights is ignored: with 3, 1 and 4 batches of each, an epoch has 4 x 3 + 3 of the first."""
    record = record_of(train((nli, similar), *CROSS_ENCODER, "--corpus_weights", "3", "1"))
    assert record["history"][-1]["step"] == 15
    wrong = [
        (["1"], r"got \[1.0\] for 2"),
        (["1", "0"], r"got \[1.0, 0.0\]"),
        (["1", "x"], "must be a number, got 'x'"),
    ]
    for weights, words in [
        *wrong,
        (["1,2"], "--corpus_weights is a list without commas, .*Write --corpus_weights 1 2"),
    ]:
        with pytest.raises(InputError, match=words):
            train((nli, similar), "--corpus_weights", *weights, output="other")
    with pytest.raises(InputError, match="draws similarity pairs and NLI pairs 1:1"):
        train((nli, similar), "--loss", "sbert_joint", "--corpus_weights", "1", "2", output="other")


def test_truncated_pairs_are_counted_as_pairs(train, make_corpus, pairs, caplog):
    """Fails if the end of pairs is dropped without a word."""
    with caplog.at_level(logging.WARNING):
        train(make_corpus({"train": [*pairs, ("好" * 62, "坏", 0.0)]}), *CROSS_ENCODER)
    assert "made_up train: 1 of 65 pairs are longer than 64 tokens" in caplog.text


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--loss", "angle"), "--loss angle is for the bi_encoder: a cross-encoder computes a logit"),
        (("--loss", "ce", "--tower", "bi_encoder"), "ce is for the cross_encoder: a bi-encoder computes a cosine"),
        (("--loss", "ce3"), "needs nli labels, and similar has binary labels.* Use --loss ce, bce or cosent"),
        (("--pooling", "mean"), "--pooling does nothing for --tower cross_encoder"),
        (("--features", "u"), "--features does nothing for --tower cross_encoder"),
        (("--tower", "bi_encoder", "--segment_ids", "zero"), "--segment_ids does nothing for --tower bi_encoder"),
        (("--corpus_weights", "1"), "for each of several corpora"),
        (("--dropout", "1.5"), "--dropout is a probability"),
        (("--label_smoothing_factor", "0.1"), "--label_smoothing_factor does nothing here"),
        (("--train_sampling_strategy", "group_by_length"), "group_by_length is for padded batches"),
        (("--per_device_train_batch_size", "0"), "--per_device_train_batch_size must be at least 1, got 0"),
    ],
)
def test_flags_that_make_no_sense(train, similar, flags, words):
    """Fails if a wrong value is ignored, or ends in a stack trace."""
    with pytest.raises(InputError, match=words):
        train(similar, *CROSS_ENCODER, *flags)
