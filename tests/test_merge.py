"""Several models as one: an ensemble has the mean of its members as cosine, a soup as weights; and the job."""

import json
import logging
import shutil
from copy import deepcopy

import numpy as np
import pytest
import torch

from cosent import decision_rules
from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS as EVALUATE
from cosent.evaluate import main as evaluate
from cosent.evaluation.metrics import find_threshold
from cosent.inference.embedding import quantized
from cosent.merge import MergeArguments, main
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import VectorEnsemble, average, common_start
from cosent.models.modules import Dense
from cosent.models.prompts import Prompts
from cosent.models.student import Student
from cosent.models.teacher import sentence_vectors
from cosent.run import read_record
from cosent.training import proof
from tests.conftest import save_record
from tests.families import LETTERS, save_family


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


def test_principal_directions(merge, models, make_corpus, pairs):
    """Fails if --pca_dim keeps other directions than those of the greatest variance, or all of them change a cosine."""
    corpus = make_corpus({"train": pairs, "validation": pairs, "test": pairs})
    texts = sorted({text for pair in pairs for text in pair[:2]})
    vectors = load_model(str(models / "mean")).encode(texts, normalize=True)
    values, columns = np.linalg.eigh(np.cov(vectors.T.astype(np.float64)))
    for width in (vectors.shape[1], 4):
        merge("weights", "mean", flags=("--pca_dim", width, "--corpus", corpus), output=f"made{width}")
        made = load_model(str(models / f"made{width}"))
        kept = columns[:, np.argsort(-values)[:width]]
        expected = vectors @ kept
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        units = made.encode(texts, normalize=True)
        np.testing.assert_allclose(units @ units.T, expected @ expected.T, atol=1e-4)
        assert units.shape == (len(texts), width)
    full = load_model(str(models / f"made{vectors.shape[1]}")).encode(texts, normalize=True)
    np.testing.assert_allclose(full @ full.T, vectors @ vectors.T, atol=1e-5)


def test_cutting_reads_no_training_sentences(merge, models, make_corpus, pairs):
    """Fails if --truncate_dim needs the train split, whose sentences only --pca_dim reads."""
    corpus = make_corpus({"validation": pairs})
    merge("weights", "mean", flags=("--truncate_dim", 8, "--corpus", corpus))
    assert load_model(str(models / "made")).embedding_dimension == 8


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


RNG = np.random.default_rng(0)
TEXTS = ["".join(RNG.choice(LETTERS, 1 + number % 20)) for number in range(40)] + ["".join(LETTERS) * 2]
FIRST, SECOND = TEXTS[:20], TEXTS[20:40]
POOLINGS = {"bert": "mean", "roberta": "cls", "qwen3": "lasttoken"}
WEIGHTS = [1.0, 2.0, 5.0]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Three bi-encoders of other architectures, tokenizers and poolings; the first has a Dense layer, too."""
    folder = tmp_path_factory.mktemp("members")
    found = [SentenceEncoder.from_pretrained(str(save_family(name, folder / name)), pooling=pooling)
             for name, pooling in POOLINGS.items()]  # fmt: skip
    found[0].after_pooling.append(Dense(32, 20))
    return found


@pytest.fixture
def loaded(tmp_path):
    """Returns a function that saves an ensemble of members and loads it again."""

    def load(members, weights=None) -> VectorEnsemble:
        VectorEnsemble(members, weights).save_pretrained(tmp_path / "all")
        return load_model(str(tmp_path / "all"))

    return load


def test_the_cosine_is_the_mean_of_the_members(members, loaded, tmp_path):
    """Fails if the folder has another cosine than the weighted mean of its members', or the cache ignores weights."""
    ensemble = loaded(members, WEIGHTS)
    cosines = [member.similarity(FIRST, SECOND) for member in members]
    assert np.std(cosines, axis=0).min() > 1e-4, "the members agree: nothing was averaged"
    expected = np.average(cosines, axis=0, weights=WEIGHTS)
    np.testing.assert_allclose(ensemble.similarity(FIRST, SECOND), expected, atol=1e-6)
    assert ensemble.similarity(FIRST[0], SECOND[0]) == pytest.approx(expected[0], abs=1e-6)
    vectors = ensemble.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 20 + 32 + 32) == (len(TEXTS), ensemble.embedding_dimension)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert 0 < np.abs(quantized(ensemble).encode(TEXTS) - vectors).max() < 0.5
    for model in (VectorEnsemble(members), ensemble):
        stored = sentence_vectors(model, TEXTS, tmp_path / "cache")
        np.testing.assert_allclose(stored, model.encode(TEXTS), atol=1e-6)


def test_prompts_of_members(members, loaded, monkeypatch):
    """Fails if equal prompts of members are not read by all, or a member reads the prompt of another one."""
    shared = Prompts({"query": "".join(LETTERS[5:9])}, "query")
    for member in members:
        monkeypatch.setattr(member, "prompts", shared)
    for options in ({}, {"prompt": ""}, {"prompt": LETTERS[3]}, {"prompt_name": "query"}):
        expected = np.mean([member.similarity(FIRST, SECOND, **options) for member in members], axis=0)
        np.testing.assert_allclose(loaded(members).similarity(FIRST, SECOND, **options), expected, atol=1e-6)
    monkeypatch.setattr(members[1], "prompts", Prompts())
    expected = np.mean([member.similarity(FIRST, SECOND) for member in members], axis=0)
    np.testing.assert_allclose(loaded(members).similarity(FIRST, SECOND), expected, atol=1e-6)
    with pytest.raises(InputError, match="prompts of their own"):
        loaded(members).encode(TEXTS, prompt=LETTERS[3])


def test_what_is_no_ensemble(members, loaded, tmp_path, train, made_up):
    """Fails if a weight of 0 or training on an ensemble is accepted."""
    for models, weights in ((members, [1, 0, 1]), (members, [1, 1]), (members, [1, 1, np.nan])):
        with pytest.raises(InputError, match="--weights"):
            VectorEnsemble(models, weights)
    loaded(members)
    for tower in ("bi_encoder", "cross_encoder"):
        with pytest.raises(InputError, match="is an ensemble.*cosent distill --teacher"):
            train(made_up, "--model_name_or_path", str(tmp_path / "all"), "--tower", tower)


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
