"""Ensembles in one folder: the mean of their members, here and in sentence-transformers, or a refusal."""

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer

from cosent.cli import parse
from cosent.data.corpus import load_corpus
from cosent.encode import EncodeArguments
from cosent.encode import main as encode
from cosent.errors import InputError
from cosent.inference.embedding import quantized
from cosent.inference.mining import judge
from cosent.models.auto import load_bi_encoder, load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import ScoreEnsemble, VectorEnsemble
from cosent.models.modules import IDENTITY, Dense
from cosent.models.prompts import Prompts
from cosent.models.teacher import sentence_vectors, teacher_scores, teacher_vectors
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
    found[0].tail.append(Dense(32, 20))
    return found


@pytest.fixture(scope="module")
def crosses(tmp_path_factory):
    """A cross-encoder of one logit, and one of two."""
    folder = tmp_path_factory.mktemp("crosses")
    names = {"bert": 1, "roberta": 2}
    return [CrossEncoder.from_pretrained(str(save_family(name, folder / name, n))) for name, n in names.items()]


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


def test_a_projection_follows_the_vectors(members, tmp_path):
    """Fails if a projection is lost on the way, or one that only turns the vectors changes a cosine."""
    ensemble = VectorEnsemble(members)
    before, vectors = ensemble.similarity(FIRST, SECOND), ensemble.encode(TEXTS)
    turn = torch.linalg.qr(torch.randn(84, 84, generator=torch.Generator().manual_seed(0)))[0]
    for width in (84, 12):
        dense = Dense(84, width, bias=False, activation_function=IDENTITY)
        dense.linear.weight.data = turn[:width].clone()
        ensemble.tail = torch.nn.Sequential(dense)
        loaded = load_model(saved(ensemble, tmp_path / f"{width}"))
        np.testing.assert_allclose(loaded.encode(TEXTS), vectors @ turn[:width].numpy().T, atol=1e-6)
        theirs = SentenceTransformer(str(tmp_path / f"{width}"), trust_remote_code=True, device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode(TEXTS), atol=1e-6)
        assert loaded.embedding_dimension == theirs.get_embedding_dimension() == width
        changed = np.abs(loaded.similarity(FIRST, SECOND) - before).max()
        assert changed < 1e-6 if width == 84 else changed > 1e-3


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


def test_equal_prompts_are_shared(members, tmp_path):
    """Fails if the ensemble is served without the prompt of its members, or one of them reads another."""
    texts = {"query": "".join(LETTERS[5:9])}
    prompts = [Prompts(texts, "query", include_prompt) for include_prompt in (True, False, True)]
    with given_prompts(members, prompts):
        loaded = load_model(saved(VectorEnsemble(members), tmp_path / "all"))
        for options in ({}, {"prompt": ""}, {"prompt": LETTERS[3]}, {"prompt_name": "query"}):
            expected = np.mean([member.similarity(FIRST, SECOND, **options) for member in members], axis=0)
            np.testing.assert_allclose(loaded.similarity(FIRST, SECOND, **options), expected, atol=1e-6)
        theirs = SentenceTransformer(str(tmp_path / "all"), trust_remote_code=True, device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode(TEXTS), atol=1e-6)
        assert np.abs(loaded.encode(TEXTS) - loaded.encode(TEXTS, prompt="")).max() > 1e-3


def test_other_prompts_stay_with_their_member(members, tmp_path):
    """Fails if a member reads the prompt of another one, or a prompt that none was made for is read by all."""
    prompts = [Prompts({"query": LETTERS[1]}, "query"), Prompts(), Prompts({"query": LETTERS[2]}, "query", False)]
    with given_prompts(members, prompts):
        loaded = load_model(saved(VectorEnsemble(members), tmp_path / "all"))
        expected = np.mean([member.similarity(FIRST, SECOND) for member in members], axis=0)
        np.testing.assert_allclose(loaded.similarity(FIRST, SECOND), expected, atol=1e-6)
        theirs = SentenceTransformer(str(tmp_path / "all"), trust_remote_code=True, device="cpu")
        np.testing.assert_allclose(theirs.encode(TEXTS), loaded.encode(TEXTS), atol=1e-6)
        with pytest.raises(InputError, match="each always reads behind its own default prompt"):
            loaded.encode(TEXTS, prompt="别的")


class given_prompts:
    """Gives members prompts for a while."""

    def __init__(self, members, prompts):
        self.members, self.prompts = members, prompts

    def __enter__(self):
        for member, prompts in zip(self.members, self.prompts, strict=True):
            member.prompts = prompts

    def __exit__(self, *_):
        for member in self.members:
            member.prompts = Prompts()


def test_the_score_is_the_mean_of_the_members(crosses, tmp_path):
    """Fails if several cross-encoders in a folder answer with anything but the mean of their logits."""
    loaded = load_model(saved(ScoreEnsemble(crosses, [1, 3]), tmp_path / "both"))
    single = [cross.similarity(FIRST, SECOND) for cross in crosses]
    expected = np.average(single, axis=0, weights=[1, 3])
    np.testing.assert_allclose(loaded.similarity(FIRST, SECOND), expected, atol=1e-6)
    assert loaded.similarity(FIRST[0], SECOND[0]) == pytest.approx(expected[0], abs=1e-6)
    theirs = TheirCrossEncoder(str(tmp_path / "both"), trust_remote_code=True, device="cpu")
    np.testing.assert_allclose(theirs.predict(list(zip(FIRST, SECOND, strict=True))), expected, atol=1e-6)
    np.testing.assert_allclose(teacher_scores(loaded, FIRST, SECOND, tmp_path / "cache"), expected, atol=1e-6)
    with pytest.raises(InputError, match="cannot embed a single one"):
        load_bi_encoder(str(tmp_path / "both"))


def test_what_is_no_ensemble(members, crosses, tmp_path, train, make_corpus, pairs):
    """Fails if one member, a weight of 0, or training on an ensemble is accepted."""
    for models, weights in ((members[:1], None), (members, [1, 0, 1]), (members, [1, 1]), (members, [1, 1, np.nan])):
        with pytest.raises(InputError, match="two models or more, and one positive weight"):
            VectorEnsemble(models, weights)
    folder = saved(VectorEnsemble(members), tmp_path / "all")
    corpus = make_corpus({"train": pairs, "validation": pairs})
    assert load_corpus(str(corpus))
    for tower in ("bi_encoder", "cross_encoder"):
        with pytest.raises(InputError, match="is an ensemble of several models.*cosent distill --teacher"):
            train(corpus, "--model_name_or_path", folder, "--tower", tower)
    both = saved(ScoreEnsemble(crosses), tmp_path / "both")
    listed = (tmp_path / "both/modules.json").read_text()
    dense = ', {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"}]'
    (tmp_path / "both/modules.json").write_text(listed.rstrip().removesuffix("]") + dense)
    with pytest.raises(InputError, match="names Dense after its members"):
        load_model(both)
