"""The job that makes one model of several."""

import json
import shutil

import numpy as np
import pytest
import torch

from cosent import decision_rules, load_model
from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS as EVALUATE
from cosent.evaluate import main as evaluate
from cosent.evaluation.metrics import find_threshold
from cosent.merge import MergeArguments, main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student
from cosent.run import read_record
from cosent.training import proof


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
def merge(models, capsys):
    """A function that runs the job on models by name, and returns its line on stdout."""

    def run(by: str, *names: str, flags=(), output="made"):
        words = ["--by", by, "--models", *(str(models / name) for name in names), "--output", str(models / output)]
        main(*parse([*words, "--device", "cpu", *map(str, flags)], MergeArguments))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_vectors(merge, models, make_corpus, pairs, capsys):
    """Fails if the job's folder is not the ensemble, or its thresholds are not those of validation."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:40], "test": pairs[40:]})
    result = merge("vectors", "mean", "cls", flags=("--weights", 1, 3, "--corpus", corpus))
    made = load_model(str(models / "made"))
    first, second, labels = (list(column) for column in zip(*pairs[:40], strict=True))
    members = [load_model(str(models / name)).similarity(first, second) for name in ("mean", "cls")]
    scores = made.similarity(first, second)
    np.testing.assert_allclose(scores, np.average(members, axis=0, weights=[1, 3]), atol=1e-6)
    assert decision_rules(models / "made")["made_up"].threshold == find_threshold(scores, np.array(labels))[0]
    assert result["weights"] == [0.25, 0.75] and result["validation"]["made_up"]["validation"]["accuracy"] > 0.5
    evaluate(*parse(["--model", str(models / "made"), "--corpus", str(corpus), "--device", "cpu"], *EVALUATE))
    assert json.loads(capsys.readouterr().out)["threshold_from"] == "made_up validation, when the model was trained"
    card = (models / "made/README.md").read_text()
    assert f"* 0.75 of `{models / 'cls'}`" in card and "load_model(" in card and "# made\n" in card


def test_weights_of_cross_encoders(merge, models):
    """Fails if cross-encoders are not merged, or a threshold of a member ends up in a model that has another scale."""
    merge("weights", "cross1", "cross2")
    made, *members = [load_model(str(models / name)) for name in ("made", "cross1", "cross2")]
    heads = [model.model.classifier.weight.detach().numpy() for model in (made, *members)]
    np.testing.assert_allclose(heads[0], (heads[1] + heads[2]) / 2, atol=1e-7)
    assert np.abs(heads[1] - heads[2]).max() > 1e-3
    assert decision_rules(models / "made") == {} == read_record(models / "made").thresholds
    assert "CrossEncoder(" in (models / "made/README.md").read_text()


def test_what_is_refused(merge, models):
    """Fails if a mean that is not defined is written."""
    cases = [
        ("vectors", ["mean"], (), "--by vectors .*two or more"),
        ("vectors", ["mean", "cls"], ("--dtype", "float16"), "--dtype"),
        ("vectors", ["mean", "cross1"], (), "--by vectors .*cross1 .*CrossEncoder"),
        ("weights", ["mean", "cls"], (), "differ in their pooling"),
        ("vectors", ["mean", "cls"], ("--weights", "1", "-1"), "--weights .* 2 models, got 1 -1"),
    ]
    before = sorted(models.iterdir())
    for by, names, flags, message in cases:
        with pytest.raises(InputError, match=message):
            merge(by, *names, flags=flags)
        assert sorted(models.iterdir()) == before


def test_half_precision_halves_the_folder(merge, models):
    """Fails if a folder of float16 is not half as large, or answers unlike the model that was measured."""
    merge("weights", "mean", flags=("--dtype", "float16"))
    sizes = [(models / name / "model.safetensors").stat().st_size for name in ("mean", "made")]
    assert sizes[1] < 0.6 * sizes[0]
    pair = ("怎么还款", "如何还款")
    before, after = (load_model(str(models / name)).similarity(*pair) for name in ("mean", "made"))
    assert before != after == pytest.approx(before, abs=1e-2)


def test_a_student_keeps_writing(merge, tiny_student, models):
    """Fails if a merged student loses the head that it generates with."""
    shutil.copytree(tiny_student, models / "student")
    merge("weights", "student", flags=("--dtype", "float16"))
    before, after = (Student.from_pretrained(str(models / name)).state_dict() for name in ("student", "made"))
    assert any(name.startswith("head.") for name in before)
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight.half().to(weight.dtype), rtol=0, atol=0)


def test_a_folder_is_complete_or_absent(merge, models, monkeypatch):
    """Fails if a folder is overwritten, a failure leaves half a model, or an ensemble becomes a member."""
    monkeypatch.setattr(proof, "answers", lambda model, pairs: np.random.default_rng().random(6))
    with pytest.raises(InputError, match="does not match the one in memory"):
        merge("vectors", "mean", "cls")
    assert not [path for path in models.iterdir() if "made" in path.name]
    monkeypatch.undo()
    (models / "made.partial").mkdir()  # what a kill leaves behind
    (models / "made.partial/torn").touch()
    merge("vectors", "mean", "cls")
    assert not (models / "made/torn").exists() and not (models / "made.partial").exists()
    with pytest.raises(InputError, match="--output .*made exists"):
        merge("vectors", "mean", "cls")
    with pytest.raises(InputError, match="--by vectors .*made holds a VectorEnsemble"):
        merge("vectors", "made", "cls", output="other")
