"""The job that makes one model of several."""

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent import decision_rules, load_model
from cosent import merge as proof
from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS as EVALUATE
from cosent.evaluate import main as evaluate
from cosent.evaluation.metrics import find_threshold
from cosent.merge import MergeArguments, main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.run import read_record


@pytest.fixture
def models(tiny_model, tmp_path):
    """Folders of two bi-encoders with the same weights and other poolings, and two cross-encoders."""
    for pooling in ("mean", "cls"):
        SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling).save_pretrained(tmp_path / pooling)
    for seed in (1, 2):
        folder = tmp_path / f"cross{seed}"
        CrossEncoder.from_pretrained(str(tiny_model), num_labels=1, seed=seed).save_pretrained(folder)
    return tmp_path


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:40], "test": pairs[40:]})


@pytest.fixture
def merge(models, capsys):
    """A function that runs the job on models by name, and returns its line on stdout."""

    def run(by: str, *names: str, flags=(), output="made"):
        given = ["--by", by, "--models", *(str(models / name) for name in names), "--output", str(models / output)]
        main(*parse([*given, "--device", "cpu", *map(str, flags)], MergeArguments))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_vectors(merge, models, corpus, pairs, capsys):
    """Fails if the job's folder is not the ensemble, or its thresholds are not those of validation."""
    result = merge("vectors", "mean", "cls", flags=("--weights", 1, 3, "--corpus", corpus))
    made = load_model(str(models / "made"))
    first, second, labels = (list(column) for column in zip(*pairs[:40], strict=True))
    members = [load_model(str(models / name)).similarity(first, second) for name in ("mean", "cls")]
    scores = made.similarity(first, second)
    np.testing.assert_allclose(scores, np.average(members, axis=0, weights=[1, 3]), atol=1e-6)
    rules = decision_rules(models / "made")
    assert rules["made_up"].threshold == find_threshold(scores, np.array(labels))[0]
    assert result["weights"] == [0.25, 0.75] and result["validation"]["made_up"]["validation"]["accuracy"] > 0.5
    evaluate(*parse(["--model", str(models / "made"), "--corpus", str(corpus), "--device", "cpu"],
                    *EVALUATE))  # fmt: skip
    assert json.loads(capsys.readouterr().out)["threshold_from"] == "made_up validation, when the model was trained"
    card = (models / "made/README.md").read_text()
    assert "0.75 of" in card and "trust_remote_code=True" in card and "pip install" not in card


def test_a_width(merge, models, corpus, tmp_path):
    """Fails if the projection is not saved, or what it loses is not said."""
    (tmp_path / "more.txt").write_text("\n".join(f"第{n}个问题" for n in range(50)), encoding="utf-8")
    flags = ("--width", 8, "--text", tmp_path / "more.txt", "--corpus", corpus)
    result = merge("vectors", "mean", "cls", flags=flags)
    assert (result["width"], result["of"], result["sentences"]) == (8, 64, 58)
    assert 0 < result["lost_variance"] < 1 and result["moved_cosines"] > 0
    made = load_model(str(models / "made"))
    assert made.encode(["怎么还款"]).shape == (1, 8)
    theirs = SentenceTransformer(str(models / "made"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(["怎么还款"]), made.encode(["怎么还款"]), atol=1e-6)
    assert "projected to 8, chosen by 58 sentences" in (models / "made/README.md").read_text()


def test_scores_and_weights(merge, models):
    """Fails if cross-encoders are not merged, or a threshold of a member ends up in a model that has another scale."""
    merge("scores", "cross1", "cross2")
    single = [load_model(str(models / name)).similarity("怎么还款", "如何还款") for name in ("cross1", "cross2")]
    assert load_model(str(models / "made")).similarity("怎么还款", "如何还款") == pytest.approx(np.mean(single))
    assert decision_rules(models / "made") == {} == read_record(models / "made").thresholds
    merge("weights", "cross1", "cross2", output="soup")
    soup, members = load_model(str(models / "soup")), [load_model(str(models / name)) for name in ("cross1", "cross2")]
    heads = [model.model.classifier.weight.detach().numpy() for model in (soup, *members)]
    np.testing.assert_allclose(heads[0], (heads[1] + heads[2]) / 2, atol=1e-7)
    assert np.abs(heads[1] - heads[2]).max() > 1e-3


@pytest.mark.parametrize(
    ("by", "names", "flags", "message"),
    [
        ("vectors", ["mean"], (), "takes two models or more, got 1"),
        ("vectors", ["mean", "cross1"], (), "each is a bi-encoder, and .*cross1 is a cross-encoder"),
        ("scores", ["mean", "cross1"], (), "each is a cross-encoder, and .*mean is a bi-encoder"),
        ("weights", ["mean", "cls"], (), "differ in their pooling"),
        ("vectors", ["mean", "cls"], ("--weights", "1", "-1"), "one positive number for each of the 2.*got 1 -1"),
        ("vectors", ["mean", "cls"], ("--width", "8"), "there are none. Name some: --text or --corpus"),
        ("scores", ["cross1", "cross2"], ("--width", "8"), "--width does nothing here. Add --by vectors"),
        ("vectors", ["mean", "cls"], ("--text", "a.txt"), "--text does nothing here. Add --width"),
    ],
)  # fmt: skip
def test_what_is_refused(merge, models, by, names, flags, message):
    """Fails if a mean that is not defined is written, or a flag is ignored."""
    before = sorted(models.iterdir())
    with pytest.raises(InputError, match=message):
        merge(by, *names, flags=flags)
    assert sorted(models.iterdir()) == before


def test_a_folder_is_complete_or_absent(merge, models, monkeypatch):
    """Fails if a folder is overwritten, a failure leaves half a model, or an ensemble becomes a member."""
    monkeypatch.setattr(proof, "answers", lambda model, pairs: np.random.default_rng().random(6))
    with pytest.raises(InputError, match="Expected the merged folder, loaded from disk"):
        merge("vectors", "mean", "cls")
    assert not [path for path in models.iterdir() if "made" in path.name]
    monkeypatch.undo()
    (models / "made.partial").mkdir()  # what a kill leaves behind
    (models / "made.partial/torn").touch()
    merge("vectors", "mean", "cls")
    assert not (models / "made/torn").exists() and not (models / "made.partial").exists()
    with pytest.raises(InputError, match="exists, and nothing was written"):
        merge("vectors", "mean", "cls")
    with pytest.raises(InputError, match="made is an ensemble. .*Of an ensemble name the members"):
        merge("vectors", "made", "cls", output="other")
