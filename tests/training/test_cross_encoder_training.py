"""The main job with the second tower, on NLI, on several corpora, and what it refuses."""

import numpy as np
import pytest
import sentence_transformers

from cosent.errors import InputError
from cosent.evaluation.metrics import find_threshold
from cosent.models.cross_encoder import CrossEncoder
from cosent.run import read_record
from tests.launching import history

CROSS_ENCODER = ("--tower", "cross_encoder", "--num_train_epochs", "1")


@pytest.fixture
def similar(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:32], "test": pairs[32:]}, name="similar")


@pytest.fixture
def nli(make_corpus, pairs):
    """Labels 0, 1, 2: how many of the two sentences have five characters; the validation split has them all."""
    rows = [(a, b, float((len(a) == 5) + (len(b) == 5))) for a, b, _ in pairs]
    return make_corpus({"train": rows, "validation": rows[16:48], "test": rows[32:]}, "nli", 2.0, name="nli")


def test_training_ends_with_a_classifier_that_others_load(cross_run, pairs):
    """Fails if the other tower does not learn, is served otherwise, or the oracle passes for the honest accuracy."""
    record = cross_run.record
    before, after = record.before["made_up"], record.after["made_up"]
    assert after["validation"]["spearman"] > before["validation"]["spearman"] + 0.2
    assert record.recipe["tower"] == "cross_encoder"
    first, second, labels = map(list, zip(*pairs[32:], strict=True))
    scores = CrossEncoder.from_pretrained(str(cross_run.folder)).similarity(first, second)
    served = sentence_transformers.CrossEncoder(str(cross_run.folder), device="cpu")
    np.testing.assert_allclose(served.predict(list(zip(first, second, strict=True))), scores, atol=1e-5)
    test, threshold = after["test"], record.thresholds["made_up"]
    assert test["oracle_accuracy"] == pytest.approx(find_threshold(scores, labels)[1])
    assert test["accuracy"] == pytest.approx(np.mean((scores >= threshold) == np.array(labels)))
    assert test["accuracy"] <= test["oracle_accuracy"]


@pytest.mark.parametrize("loss, logits", [("ce3", 3), pytest.param("cosent", 1, marks=pytest.mark.slow)])
def test_nli_is_scored_in_its_order(train, nli, loss, logits):
    """Fails if a three-class model has no score, or one that does not rise from contradiction to entailment."""
    folder = train(nli, *CROSS_ENCODER, "--loss", loss, "--num_train_epochs", "8")
    assert read_record(folder).after["nli"]["validation"]["spearman"] > 0.3
    config = CrossEncoder.from_pretrained(str(folder)).model.config
    assert config.num_labels == logits and (config.label2id.get("entailment") == 2) == (loss == "ce3")


def test_transfer_selects_on_other_corpora(train, nli, similar, make_corpus, pairs):
    """Fails if the best epoch of an NLI run is chosen on NLI, or one of the tested corpora is left out."""
    graded = make_corpus({"validation": pairs[:32], "test": [(a, b, 5 * y) for a, b, y in pairs]}, "graded", 5.0, "g")
    record = read_record(train(nli, "--eval_corpora", str(similar), str(graded), "--num_train_epochs", "1"))
    assert set(record.after) == {"nli", "similar", "g"} and set(record.thresholds) == {"similar"}
    evaluated = {key for entry in record.history for key in entry if key.endswith("_spearman")}
    assert evaluated == {"eval_similar_spearman", "eval_g_spearman", "eval_spearman"}
    with pytest.raises(InputError, match="--eval_corpora names similar more than once"):
        train(nli, "--eval_corpora", str(similar), str(similar), output="other")


def test_corpora_with_weights(train, nli, similar):
    """Fails if --corpus_weights is ignored: with 3, 1 and 4 batches of each, an epoch has 4 x 3 + 3 of the first."""
    folder = train((nli, similar), *CROSS_ENCODER, "--corpus_weights", "3", "1")
    assert len(history(folder, "loss")) == 15
    for weights, words in ((["1"], r"\[1.0\] for 2"), (["1", "0"], r"\[1.0, 0.0\]"), (["1", "x"], "'x'")):
        with pytest.raises(InputError, match=f"--corpus_weights.*{words}"):
            train((nli, similar), "--corpus_weights", *weights, output="other")
    with pytest.raises(InputError, match="--corpus_weights.*1,2"):
        train((nli, similar), "--corpus_weights", "1,2", output="other")
    with pytest.raises(InputError, match="sbert_joint .*--corpus_weights"):
        train((nli, similar), "--loss", "sbert_joint", "--corpus_weights", "1", "2", output="other")
