"""Several models as one: an ensemble's cosine is the mean of its members', a soup's weights are; or a refusal."""

import logging
from copy import deepcopy

import numpy as np
import pytest
import torch

from cosent.errors import InputError
from cosent.inference.embedding import quantized
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import VectorEnsemble, average, common_start
from cosent.models.modules import Dense
from cosent.models.prompts import Prompts
from cosent.models.teacher import sentence_vectors
from cosent.run import Environment, RunRecord
from tests.families import LETTERS, save_family

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


def test_prompts(members, loaded, monkeypatch):
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
    cases = {
        "tower": CrossEncoder.from_pretrained(str(tiny_model), num_labels=1),
        "architecture": SentenceEncoder.from_pretrained(str(save_family("roberta", tmp_path / "roberta"))),
        "pooling": SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls"),
        "pooling and modules": wider,
        "prompts": prompted,
        "tokenizer": SentenceEncoder.from_pretrained(str(save_family("bert", tmp_path / "letters"))),
        "config.json": other,
    }
    for what, model in cases.items():
        with pytest.raises(InputError, match=f"a and b differ in their {what}"):
            average([bi, model], ["a", "b"], [1, 1])


def test_runs_of_other_starts_are_told(tmp_path, caplog):
    """Fails if the mean of unrelated runs is written without a word, or runs from one start are doubted."""
    for name, start in {"a": "mini", "b": "mini", "c": "other"}.items():
        (tmp_path / name).mkdir()
        measured = {"environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0, "history": []}
        RunRecord(recipe={"model_name_or_path": start}, **measured).save(tmp_path / name)
    a, b, c, unknown = (str(tmp_path / name) for name in "abcd")
    with caplog.at_level(logging.WARNING):
        assert common_start([a, b]) == "mini" and not caplog.text
        assert common_start([a, c]) is None and "one start (mini, other)" in caplog.text
        assert common_start([unknown, unknown]) is None and "one start (unknown)" in caplog.text
