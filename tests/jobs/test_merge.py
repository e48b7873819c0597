"""Several models as one: the mean of their weights, and the job."""

import json
import logging
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch

from cosent import decision_rules
from cosent.cli import arguments_of, parse
from cosent.errors import InputError
from cosent.evaluation.metrics import find_threshold
from cosent.jobs.evaluate import main as evaluate
from cosent.jobs.merge import MergeArguments, main
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.merging import average, common_start, shares
from cosent.models.modules import Dense
from cosent.models.prompts import Prompts
from cosent.models.student import Student
from cosent.training import proof
from tests.conftest import save_record
from tests.support.families import save_family


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

    def run(*names: str, flags=(), output="made"):
        words = ["--models", *(str(models / name) for name in names), "--output", str(models / output)]
        main(*parse([*words, "--device", "cpu", *map(str, flags)], MergeArguments))
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_weights_of_bi_encoders(merge, models, tiny_model, make_corpus, pairs, capsys):
    """Fails if the job's folder is not the weighted mean, or its thresholds are not those of validation."""
    other = load_model(str(models / "mean"))
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    other.save_pretrained(models / "other")
    corpus = make_corpus({"train": pairs, "validation": pairs[:40], "test": pairs[40:]})
    result = merge("mean", "other", flags=("--weights", 1, 3, "--corpus", corpus))
    made = load_model(str(models / "made"))
    first, second, labels = (list(column) for column in zip(*pairs[:40], strict=True))
    members = [load_model(str(models / name)).state_dict() for name in ("mean", "other")]
    for name, weight in made.state_dict().items():
        torch.testing.assert_close(weight, (members[0][name] + 3 * members[1][name]) / 4)
    scores = made.similarity(first, second)
    assert decision_rules(models / "made")["made_up"].threshold == find_threshold(scores, np.array(labels))[0]
    assert result["weights"] == [0.25, 0.75] and result["validation"]["made_up"]["validation"]["accuracy"] > 0.5
    evaluate(
        *parse(["--model", str(models / "made"), "--corpus", str(corpus), "--device", "cpu"], *arguments_of(evaluate))
    )
    assert json.loads(capsys.readouterr().out)["threshold_from"] == "made_up validation, by decision.json of the model"
    card = (models / "made/README.md").read_text()
    assert f"* 0.75 of `{models / 'other'}`" in card and "SentenceTransformer(" in card and "# made\n" in card


def test_weights_of_cross_encoders(merge, models):
    """Fails if cross-encoders are not merged, or a threshold of a member ends up in a model that has another scale."""
    merge("cross1", "cross2")
    made, *members = [load_model(str(models / name)) for name in ("made", "cross1", "cross2")]
    heads = [model.model.classifier.weight.detach().numpy() for model in (made, *members)]
    np.testing.assert_allclose(heads[0], (heads[1] + heads[2]) / 2, atol=1e-7)
    assert np.abs(heads[1] - heads[2]).max() > 1e-3
    assert decision_rules(models / "made") == {}
    assert "CrossEncoder(" in (models / "made/README.md").read_text()


def test_principal_directions(merge, models, make_corpus, pairs):
    """Fails if --pca_dim keeps other directions than those of the greatest variance, or all of them change a cosine."""
    corpus = make_corpus({"train": pairs, "validation": pairs, "test": pairs})
    texts = sorted({text for pair in pairs for text in pair[:2]})
    vectors = load_model(str(models / "mean")).encode(texts, normalize_embeddings=True)
    values, columns = np.linalg.eigh(np.cov(vectors.T.astype(np.float64)))
    for width in (vectors.shape[1], 4):
        merge("mean", flags=("--pca_dim", width, "--corpus", corpus), output=f"made{width}")
        made = load_model(str(models / f"made{width}"))
        kept = columns[:, np.argsort(-values)[:width]]
        expected = vectors @ kept
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        units = made.encode(texts, normalize_embeddings=True)
        np.testing.assert_allclose(units @ units.T, expected @ expected.T, atol=1e-4)
        assert units.shape == (len(texts), width)
    full = load_model(str(models / f"made{vectors.shape[1]}")).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(full @ full.T, vectors @ vectors.T, atol=1e-5)


def test_cutting_reads_no_training_sentences(merge, models, make_corpus, pairs):
    """Fails if --truncate_dim needs the train split, whose sentences only --pca_dim reads."""
    corpus = make_corpus({"validation": pairs})
    merge("mean", flags=("--truncate_dim", 8, "--corpus", corpus))
    assert load_model(str(models / "made")).embedding_dimension == 8


def test_a_pooling_is_written_down(merge, models, tiny_model):
    """Fails if a folder of FlagEmbedding, which does not say that it pools by [CLS], can be served only as a mean."""
    merge(tiny_model, flags=("--pooling", "cls"))
    sentences = ["怎么还款", "如何还款"]
    expected = load_model(str(models / "cls")).encode(sentences)
    np.testing.assert_array_equal(load_model(str(models / "made")).encode(sentences), expected)
    with pytest.raises(InputError, match="--pooling must be one of"):
        merge(tiny_model, flags=("--pooling", "max"), output="other")


def test_half_precision_halves_the_folder(merge, models):
    """Fails if a folder of float16 is not half as large, or answers unlike the model that was measured."""
    merge("mean", flags=("--dtype", "float16"))
    sizes = [(models / name / "model.safetensors").stat().st_size for name in ("mean", "made")]
    assert sizes[1] < 0.6 * sizes[0]
    pair = ("怎么还款", "如何还款")
    before, after = (load_model(str(models / name)).similarity(*pair) for name in ("mean", "made"))
    assert before != after == pytest.approx(before, abs=1e-2)


def test_a_student_keeps_writing(merge, tiny_student, models):
    """Fails if a merged student loses the head that it generates with."""
    shutil.copytree(tiny_student, models / "student")
    merge("student", flags=("--dtype", "float16"))
    before, after = (Student.from_pretrained(str(models / name)).state_dict() for name in ("student", "made"))
    assert any(name.startswith("head.") for name in before)
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight.half().to(weight.dtype), rtol=0, atol=0)


def test_a_folder_is_complete_or_absent(merge, models, monkeypatch):
    """Fails if a folder is overwritten, or a failure leaves half a model."""
    monkeypatch.setattr(proof, "answers", lambda model, pairs: np.random.default_rng().random(6))
    with pytest.raises(InputError, match="does not match the one in memory"):
        merge("mean")
    assert not [path for path in models.iterdir() if "made" in path.name]
    monkeypatch.undo()
    merge("mean")
    assert [path.name for path in models.iterdir() if "made" in path.name] == ["made"], "a lock or a partial folder"
    with pytest.raises(InputError, match="--output .*made exists"):
        merge("mean")


@pytest.fixture
def bi(tiny_model):
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean")


def test_a_soup_on_paper(tiny_model, bi):
    """Fails if a weight of the soup is not the mean, w + (1 * 0 + 3 * 4) / 4 = w + 3, or long sentences are cut."""
    start, other = {name: weight.clone() for name, weight in bi.state_dict().items()}, deepcopy(bi)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 4.0
    soup = average([bi, other], ["a", "b"], [1, 3])
    assert isinstance(soup, SentenceEncoder) and len(start) > 20
    for name, weight in soup.state_dict().items():
        torch.testing.assert_close(weight, start[name] + 3 * start[name].is_floating_point())
    for weights in ([1, 0], [1], [1, np.nan]):
        with pytest.raises(InputError, match="--weights"):
            shares(weights, 2)
    short = SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=16)
    assert average([short, bi], ["a", "b"], [1, 1]).max_length == bi.max_length > 16


def test_models_of_another_kind_have_no_mean(tiny_model, bi, tmp_path):
    """Fails if the mean of models that are not alike is taken, whose vectors mean nothing."""
    prompted, wider, other = deepcopy(bi), deepcopy(bi), deepcopy(bi)
    prompted.prompts = Prompts({"query": "问："}, "query")
    wider.after_pooling.append(Dense(32, 8))
    other.backbone.config.layer_norm_eps = 0.1
    roberta, letters = (save_family(name, tmp_path / name) for name in ("roberta", "bert"))
    cases = {"tower": CrossEncoder.from_pretrained(str(tiny_model), num_labels=1), "prompts": prompted}
    cases |= {"architecture": SentenceEncoder.from_pretrained(str(roberta)), "config.json": other}
    cases |= {"pooling": SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls"), "pooling and modules": wider}
    cases["tokenizer"] = SentenceEncoder.from_pretrained(str(letters))
    for what, model in cases.items():
        with pytest.raises(InputError, match=f"a and b differ in their {what}"):
            average([bi, model], ["a", "b"], [1, 1])


def test_runs_of_other_starts_are_told(tmp_path, caplog):
    """Fails if the mean of unrelated runs is written without a word, or runs from one start are doubted."""
    for name, start in {"a": "mini", "b": "mini", "c": "other"}.items():
        (tmp_path / name).mkdir()
        save_record(tmp_path / name, {}, recipe={"model_name_or_path": start})
    a, b, c, unknown = (str(tmp_path / name) for name in "abcd")
    with caplog.at_level(logging.WARNING):
        assert common_start([a, b]) == "mini" and not caplog.text
        assert common_start([a, c]) is None and "one start (mini, other)" in caplog.text
        assert common_start([unknown, unknown]) is None and "one start (unknown)" in caplog.text
