"""From a retrieval file to a trained model; if these fail, its labels or their order are lost on the way."""

import json

import numpy as np
import pytest
from cosent.data_scripts import prepare

from cosent.cli import arguments_of
from cosent.data.corpus import load_corpus
from cosent.data.manifest import Manifest
from cosent.errors import InputError
from cosent.flags import parse
from cosent.losses import LOSSES
from cosent.record import read_record
from cosent.training.objective import loss_targets
from tests.conftest import SENTENCES


@pytest.fixture
def prepared(tmp_path):
    """Returns a function that prepares rows of JSON lines and gives back the folder."""

    def run(rows, *flags):
        (tmp_path / "bge.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        source = ["mine", "--source", str(tmp_path / "bge.jsonl"), "--output", str(tmp_path / "mine")]
        prepare.main(*parse([*source, *flags], *arguments_of(prepare.main)))
        return tmp_path / "mine"

    return run


def scored(count: int) -> list[dict]:
    """Queries with a positive and two negatives, and scores of a reranker out of 0..1."""
    rng = np.random.default_rng(0)
    return [
        {
            "query": f"{SENTENCES[i % 8]}{i}",
            "pos": [f"{SENTENCES[(i + 1) % 8]}{i}"],
            "neg": [f"{SENTENCES[(i + k) % 8]}{i}" for k in (3, 5)],
            "pos_scores": [float(rng.normal(6))],
            "neg_scores": rng.normal(-3, size=2).tolist(),
        }
        for i in range(count)
    ]


def test_scores_of_a_reranker_train_in_their_order(prepared):
    rows = scored(40)
    folder = prepared(rows, "--validation_share", "0.2")
    corpus = load_corpus(str(folder))
    scores = {
        (row["query"], text): score
        for row in rows
        for side in ("pos", "neg")
        for text, score in zip(row[side], row[f"{side}_scores"], strict=True)
    }
    pairs = corpus.split("train")
    labels = np.array([scores[pair] for pair in zip(pairs["sentence1"][:], pairs["sentence2"][:], strict=True)])
    assert len(labels) == 96 and labels.min() < 0 and labels.max() > 1
    np.testing.assert_array_equal(corpus.labels("train"), labels.astype(np.float32))
    targets = loss_targets(LOSSES["cosent"], corpus.labels("train"), corpus.manifest)
    assert (np.argsort(targets, kind="stable") == np.argsort(labels, kind="stable")).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_that_teach_nothing_are_refused_by_the_name_of_the_loss(loss):
    """Positives alone are enough for the losses with in-batch negatives, and for no other."""
    manifest = Manifest("mine", "binary", 0.0, 1.0, {"bi_encoder": 32}, {})
    positives, negatives = np.ones(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    if LOSSES[loss].compares_sentences:
        assert loss_targets(LOSSES[loss], positives, manifest).tolist() == [1.0] * 8
        with pytest.raises(InputError, match=f"--loss {loss} .*mine .*0.8"):
            loss_targets(LOSSES[loss], negatives, manifest)
        return
    with pytest.raises(InputError, match=f"have the label 1, .*--loss {loss} .*--loss infonce"):
        loss_targets(LOSSES[loss], positives, manifest)
    with pytest.raises(InputError, match="have the label 0, .*another label.$"):
        loss_targets(LOSSES[loss], negatives, manifest)


def test_positives_alone_train(prepared, train):
    """The remedy that the refusal names has to work, from preparing to the saved model."""
    folder = prepared([{key: row[key] for key in ("query", "pos")} for row in scored(32)])
    manifest = Manifest.load(folder)
    assert any("every train label is 1" in warning and "--loss infonce" in warning for warning in manifest.warnings)
    record = read_record(train(folder, "--loss", "infonce", "--per_device_train_batch_size", "8"))
    losses = [entry["loss"] for entry in record.history if "loss" in entry]
    assert len(losses) == 8 and np.mean(losses[-4:]) < np.mean(losses[:4])
