"""Ensembles in one folder: the mean of their members, here and in sentence-transformers, or a refusal."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent.cli import parse
from cosent.encode import EncodeArguments
from cosent.encode import main as encode
from cosent.errors import InputError
from cosent.inference.embedding import quantized
from cosent.inference.mining import judge
from cosent.models.auto import load_bi_encoder, load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.ensemble import VectorEnsemble
from cosent.models.modules import Dense
from cosent.models.prompts import Prompts
from cosent.models.teacher import sentence_vectors, teacher_vectors
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


def saved(ensemble, folder) -> str:
    ensemble.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("packing", [True, False])
def test_the_cosine_is_the_mean_of_the_members(members, tmp_path, packing):
    """Fails if the folder has another cosine than the weighted mean of its members', here or in their library."""
    loaded = load_model(saved(VectorEnsemble(members, WEIGHTS), tmp_path / "all"))
    loaded.packing = packing
    cosines = [member.similarity(FIRST, SECOND) for member in members]
    assert np.std(cosines, axis=0).min() > 1e-4, "the members agree: nothing was averaged"
    expected = np.average(cosines, axis=0, weights=WEIGHTS)
    np.testing.assert_allclose(loaded.similarity(FIRST, SECOND), expected, atol=1e-6)
    assert loaded.similarity(FIRST[0], SECOND[0]) == pytest.approx(expected[0], abs=1e-6)
    vectors = loaded.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 20 + 32 + 32) == (len(TEXTS), loaded.embedding_dimension)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "all"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS, batch_size=3), vectors, atol=1e-6)
    assert theirs.get_embedding_dimension() == 84 and theirs.max_seq_length == loaded.max_length
    theirs.save(str(tmp_path / "again"))
    np.testing.assert_allclose(load_model(str(tmp_path / "again")).encode(TEXTS), vectors, atol=1e-6)


def test_sentence_transformers_asks_before_it_imports(members, tmp_path):
    """Fails if the README of the folder promises that it loads without trust_remote_code."""
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(saved(VectorEnsemble(members), tmp_path / "all"), device="cpu")


def test_jobs_take_an_ensemble(members, tmp_path, tiny_model):
    """Fails if encode, mine or distill would have other vectors or scores of an ensemble than `encode`."""
    folder = saved(VectorEnsemble(members), tmp_path / "all")
    ensemble = load_bi_encoder(folder)
    expected = ensemble.encode(TEXTS, normalize=True)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["--model", folder, "--text", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "v.npy")]
    encode(*parse([*words, "--normalize", "--device", "cpu"], EncodeArguments))
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    vectors, rows = teacher_vectors(ensemble, FIRST, SECOND, tmp_path / "cache")
    np.testing.assert_allclose(vectors[rows[:, 0]], expected[:20], atol=1e-6)
    judged = judge(folder, TEXTS, np.arange(20), np.arange(20, 40), "cpu", tmp_path / "cache")
    assert judged.is_cosine
    np.testing.assert_allclose(judged.scores, ensemble.similarity(FIRST, SECOND), atol=1e-6)
    other = VectorEnsemble(members, WEIGHTS)
    stored = sentence_vectors(other, TEXTS, tmp_path / "cache")
    np.testing.assert_allclose(stored, other.encode(TEXTS), atol=1e-6, err_msg="the cache ignores the weights")
    int8 = quantized(load_model(folder)).encode(TEXTS)
    assert 0 < np.abs(int8 - expected).max() < 0.5


def test_equal_prompts_are_shared(members, tmp_path, monkeypatch):
    """Fails if the ensemble is served without the prompt of its members, or one of them reads another."""
    texts = {"query": "".join(LETTERS[5:9])}
    prompts = [Prompts(texts, "query", include_prompt) for include_prompt in (True, False, True)]
    for member, own in zip(members, prompts, strict=True):
        monkeypatch.setattr(member, "prompts", own)
    loaded = load_model(saved(VectorEnsemble(members), tmp_path / "all"))
    for options in ({}, {"prompt": ""}, {"prompt": LETTERS[3]}, {"prompt_name": "query"}):
        expected = np.mean([member.similarity(FIRST, SECOND, **options) for member in members], axis=0)
        np.testing.assert_allclose(loaded.similarity(FIRST, SECOND, **options), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "all"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode(TEXTS), atol=1e-6)
    assert np.abs(loaded.encode(TEXTS) - loaded.encode(TEXTS, prompt="")).max() > 1e-3


def test_other_prompts_stay_with_their_member(members, tmp_path, monkeypatch):
    """Fails if a member reads the prompt of another one, or a prompt that none was made for is read by all."""
    prompts = [Prompts({"query": LETTERS[1]}, "query"), Prompts(), Prompts({"query": LETTERS[2]}, "query", False)]
    for member, own in zip(members, prompts, strict=True):
        monkeypatch.setattr(member, "prompts", own)
    loaded = load_model(saved(VectorEnsemble(members), tmp_path / "all"))
    expected = np.mean([member.similarity(FIRST, SECOND) for member in members], axis=0)
    np.testing.assert_allclose(loaded.similarity(FIRST, SECOND), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tmp_path / "all"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode(TEXTS), atol=1e-6)
    with pytest.raises(InputError, match="prompts of their own"):
        loaded.encode(TEXTS, prompt="别的")


def test_what_is_no_ensemble(members, tmp_path, train, make_corpus, pairs):
    """Fails if a weight of 0, another module, or training on an ensemble is accepted."""
    for models, weights in ((members, [1, 0, 1]), (members, [1, 1]), (members, [1, 1, np.nan])):
        with pytest.raises(InputError, match="--weights"):
            VectorEnsemble(models, weights)
    folder = saved(VectorEnsemble(members), tmp_path / "all")
    corpus = make_corpus({"train": pairs, "validation": pairs})
    for tower in ("bi_encoder", "cross_encoder"):
        with pytest.raises(InputError, match="is an ensemble.*cosent distill --teacher"):
            train(corpus, "--model_name_or_path", folder, "--tower", tower)
    listed = (tmp_path / "all/modules.json").read_text()
    dense = ', {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"}]'
    (tmp_path / "all/modules.json").write_text(listed.rstrip().removesuffix("]") + dense)
    with pytest.raises(InputError, match="modules.json names 1_Dense"):
        load_model(folder)
