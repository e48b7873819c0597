"""A folder means the same vectors to us, to sentence-transformers and to AutoModel, before and after saving."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel

import cosent.models.lookup  # noqa: F401, registers its type, as other programs must
from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.embedding import quantized
from cosent.models.folder import read_json, remove_modules, write_json
from cosent.models.layout import Module
from cosent.models.modules import ACTIVATIONS, Normalize, Pooling
from tests.support import published
from tests.support.families import save_family

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]
SETTINGS, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"


def theirs(folder, **options) -> np.ndarray:
    """Vectors of sentence-transformers."""
    return SentenceTransformer(str(folder), device="cpu", **options).encode(TEXTS)


def ours(folder) -> np.ndarray:
    return SentenceEncoder.from_pretrained(str(folder)).encode(TEXTS)


def same_to_all(folder, again) -> np.ndarray:
    """Vectors of a folder: the same here, in sentence-transformers, and after a further round through both."""
    vectors = ours(folder)
    SentenceTransformer(str(folder), device="cpu").save(str(again))
    for other in (theirs(folder), theirs(again), ours(again)):  # the default prompt included, if there is one
        np.testing.assert_allclose(other, vectors, rtol=0, atol=1e-6)
    assert np.std(vectors, axis=0).max() > 1e-3, "all vectors are alike: nothing was compared"
    return vectors


def pooler(folder) -> dict[str, torch.Tensor]:
    return {name: value for name, value in load_file(folder / "model.safetensors").items() if "pooler" in name}


def kinds(folder) -> list[str]:
    return [module["type"].rsplit(".", 1)[-1] for module in read_json(str(folder), "modules.json")]


def change(folder, file: str, **values) -> None:
    write_json(folder / file, read_json(str(folder), file) | values)


def test_poolings_on_paper():
    """Fails if a pooling computes something else than its name, or reads padding on either side (bojone/CoSENT#2)."""
    tokens = torch.tensor([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]])  # two tokens and padding
    for mode, expected in (("cls", [1.0, 4.0]), ("mean", [2.0, 2.0]), ("lasttoken", [3.0, 0.0])):
        assert Pooling(mode, 2)(tokens, torch.tensor([[1, 1, 0]])).tolist() == [expected]
        left = tokens[:, [2, 0, 1]]
        assert Pooling(mode, 2)(left, torch.tensor([[0, 1, 1]])).tolist() == [expected]
        features = {"token_embeddings": left, "attention_mask": torch.tensor([[0, 1, 1]])}
        assert modules.Pooling(2, mode)(features)["sentence_embedding"].tolist() == [expected]
    for mode in ("median", "cls+mean", "MEAN", "max"):
        with pytest.raises(InputError, match="--pooling"):
            Pooling(mode, 8)


E5 = partial(published.e5_small, **published.SIZES)


@pytest.mark.parametrize("make", [published.bge_zh, E5, published.minilm, published.qwen3_embedding])
def test_published_layouts(make, tmp_path):
    """Fails if a published folder has other vectors than in sentence-transformers, before or after saving or behind a
    prompt, which a decoder counts from its padding, or a sentence's vector depends on what it is packed with."""
    folder = make(tmp_path / "published")
    encoder, float32 = SentenceEncoder.from_pretrained(folder), {"dtype": torch.float32}
    vectors = encoder.encode(TEXTS)
    named = [{"prompt_name": name} for name in encoder.prompts.texts]
    for options in ({}, {"prompt": ""}, {"prompt": "别的："}, *named):
        expected = SentenceTransformer(folder, device="cpu", model_kwargs=float32).encode(TEXTS, **options)
        np.testing.assert_allclose(encoder.encode(TEXTS, **options), expected, rtol=0, atol=2e-6)
    encoder.save_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(same_to_all(tmp_path / "ours", tmp_path / "again"), vectors)
    encoder.packing = False
    for texts, rows in ((TEXTS, vectors), *(([text], vectors[row : row + 1]) for row, text in enumerate(TEXTS))):
        np.testing.assert_allclose(encoder.encode(texts), rows, rtol=0, atol=2e-6)


def test_sentence_transformers_and_we_read_what_the_other_saved(tiny_model, tmp_path):
    """Fails if saving loses a part, or a folder has other vectors in sentence-transformers or after a round trip."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls", max_length=16, seed=7)
    encoder.save_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(same_to_all(tmp_path / "ours", tmp_path / "theirs"), encoder.encode(TEXTS))
    for folder in ("ours", "theirs"):
        again = SentenceEncoder.from_pretrained(str(tmp_path / folder))
        assert again.modules_after_backbone == encoder.modules_after_backbone and again.max_length == 16
    other_seed = SentenceEncoder.from_pretrained(str(tmp_path / "ours"), pooling="linear_cls", seed=8)
    assert all(map(torch.equal, encoder.state_dict().values(), other_seed.state_dict().values())), "drawn anew"
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean").save_pretrained(tmp_path / "ours")
    assert [path.name for path in (tmp_path / "ours").iterdir() if path.is_dir()] == ["1_Pooling"], "left behind"


def test_everything_comes_out_again(start, tmp_path):
    """Fails if a starting folder loses a module, a prompt, a setting or a trained weight by loading and saving."""
    SentenceEncoder.from_pretrained(str(start)).save_pretrained(tmp_path / "ours")
    vectors = same_to_all(tmp_path / "ours", tmp_path / "again")
    np.testing.assert_allclose(vectors, theirs(start), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors.shape == (4, 20)
    for folder in (tmp_path / "ours", tmp_path / "again"):
        assert kinds(folder) == kinds(start) == ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
        settings = read_json(str(start), SETTINGS)
        assert read_json(str(folder), SETTINGS) == settings
        assert settings["default_prompt_name"] == "query" and settings["similarity_fn_name"] == "dot"
        weights = pooler(folder)
        assert len(weights) == 2 and all(torch.equal(weights[name], value) for name, value in pooler(start).items())
    _, report = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not any("pooler" in name for name, _ in SentenceEncoder.from_pretrained(str(start)).named_parameters())
    int8 = quantized(SentenceEncoder.from_pretrained(str(start))).encode(TEXTS)
    assert 0 < np.abs(int8 - vectors).max() < 0.1
    np.testing.assert_allclose(np.linalg.norm(int8, axis=1), 1, atol=1e-6, err_msg="int8 leaves out a module")


def test_training_keeps_what_it_does_not_train(start, train, made_up, tmp_path):
    """Fails if a run loses a part of its starting folder, or leaves a Dense layer as it was."""
    folder = train(made_up, "--model_name_or_path", str(start), "--use_peft", "true")
    vectors = same_to_all(folder, tmp_path / "again")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors - ours(start)).max() > 1e-2 and kinds(folder) == kinds(start)
    weights = pooler(folder)
    assert len(weights) == 2 and all(torch.equal(weights[name], value) for name, value in pooler(start).items())
    for place in ("2_Dense", "3_Dense"):
        before, after = load_file(start / place / "model.safetensors"), load_file(folder / place / "model.safetensors")
        assert before.keys() == after.keys()
        assert all(after[name].dtype == torch.float32 and not torch.equal(before[name], after[name]) for name in after)


def test_another_pooling_keeps_only_modules_without_weights(start, caplog):
    """Fails if a Dense layer reads vectors that it was not trained on, or goes without a word."""
    for pooling, expected in (("lasttoken", ["Normalize"]), ("linear_cls", ["Dense", "Normalize"])):
        encoder = SentenceEncoder.from_pretrained(str(start), pooling=pooling)
        assert [type(module).__name__ for module in encoder.after_pooling] == expected
        assert encoder.embedding_dimension == 32
    assert f"the pooling of {start}, which was trained with mean, 2_Dense, 3_Dense." in caplog.text
    assert len(SentenceEncoder.from_pretrained(str(start), pooling="mean").after_pooling) == 3


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_encoders_are_small_and_float32_elsewhere(name):
    """Fails if sentence-transformers trains a shipped encoder in half precision, or the package is too large."""
    served = SentenceTransformer(resolve(name), device="cpu")
    assert {weight.dtype for weight in served.parameters()} == {torch.float32}
    assert AutoModel.from_pretrained(resolve(name)).dtype == torch.float32
    encoder = SentenceEncoder.from_pretrained(name)
    encoder.packing = False  # mini-roformer's table of sines is in half precision: not exact at other places in a row
    np.testing.assert_allclose(theirs(resolve(name)), encoder.encode(TEXTS), rtol=0, atol=2e-6)
    weights = load_file(f"{resolve(name)}/model.safetensors")
    kinds = {torch.int8, torch.int32, torch.float32} if name == "similar-lookup" else {torch.float16}
    assert {weight.dtype for weight in weights.values()} == kinds and sum(map(torch.numel, weights.values())) < 8e6
    assert encoder.tokenizer.unk_token_id not in encoder.tokenizer("谁的iPhone在2024年坏了？abcxyz")["input_ids"]


@pytest.mark.parametrize("name", [TRANSFORMER, "sentence_xlnet_config.json"])
def test_lower_case_and_length_of_older_folders(tiny_model, tmp_path, name):
    """Fails if a folder of an older sentence-transformers reads capitals or long sentences otherwise here."""
    start = tmp_path / "start"
    SentenceEncoder.from_pretrained(str(tiny_model)).save_pretrained(start)
    rules = (start / "tokenizer.json").read_text(encoding="utf-8")
    (start / "tokenizer.json").write_text(rules.replace('"lowercase": true', '"lowercase": false'), encoding="utf-8")
    (start / TRANSFORMER).unlink()
    cased = ours(start)
    write_json(start / name, {"max_seq_length": 8, "do_lower_case": True})
    SentenceEncoder.from_pretrained(str(start)).save_pretrained(tmp_path / "ours")
    vectors = ours(tmp_path / "ours")
    for folder in (start, tmp_path / "ours"):
        np.testing.assert_allclose(theirs(folder), vectors, rtol=0, atol=1e-6)
    assert (np.abs(vectors - cased).max(axis=1) > 1e-3).tolist() == [False, True, False, True]
    assert read_json(str(tmp_path / "ours"), TRANSFORMER) == {"max_seq_length": 8, "do_lower_case": True}


def test_other_similarity_functions(start, tmp_path, caplog):
    """Fails if a user whose folder compares by dot products is not told that cosines are trained here."""
    folder = shutil.copytree(start, tmp_path / "changed")
    listed = read_json(str(folder), "modules.json")
    for similarity, normalized, warnings in (("dot", True, 0), ("dot", False, 1), ("euclidean", True, 2)):
        write_json(folder / "modules.json", listed if normalized else listed[:-1])
        change(folder, SETTINGS, similarity_fn_name=similarity)
        for _ in range(2):
            SentenceEncoder.from_pretrained(str(folder)).save_pretrained(tmp_path / "ours")
        assert caplog.text.count("similarity_fn_name") == warnings
        assert read_json(str(tmp_path / "ours"), SETTINGS)["similarity_fn_name"] == similarity


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation(name, tmp_path):
    """Fails if a Dense layer computes another function than in sentence-transformers."""
    theirs = modules.Dense(6, 4, activation_function=getattr(torch.nn, name)()).eval()
    (tmp_path / "2_Dense").mkdir()
    theirs.save(str(tmp_path / "2_Dense"))
    vectors, config = torch.randn(5, 6), theirs.get_config_dict()
    module = Module("Dense", "2_Dense", config)
    assert module.obstacle is None
    built = module.build(str(tmp_path))
    torch.testing.assert_close(built(vectors), theirs({"sentence_embedding": vectors})["sentence_embedding"])
    assert built.config().items() <= config.items()


@pytest.mark.parametrize("pooling", ["mean", "linear_cls"])
def test_what_servers_read(tiny_model, tmp_path, pooling):
    """Fails if a key is missing without which TEI 1.9.3 or vLLM refuses a bi-encoder or serves other vectors.

    TEI stops without both booleans of the pooling and without the maximum length, vLLM ignores the latter without
    `do_lower_case`, and both find `Dense` only under its old module path. sentence-transformers writes none of these.
    """
    SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling, max_length=24).save_pretrained(tmp_path)
    keys = read_json(str(tmp_path), "1_Pooling/config.json")
    mode = "pooling_mode_cls_token" if pooling == "linear_cls" else "pooling_mode_mean_tokens"
    assert [key for key, value in keys.items() if value is True] == [mode]
    assert {"pooling_mode_cls_token", "pooling_mode_mean_tokens"} <= keys.keys()
    assert read_json(str(tmp_path), TRANSFORMER) == {"max_seq_length": 24, "do_lower_case": False}
    listed = ["Transformer", "Pooling", *(["Dense"] if pooling == "linear_cls" else [])]
    types = [module["type"] for module in read_json(str(tmp_path), "modules.json")]
    assert types == [f"sentence_transformers.models.{kind}" for kind in listed]
    assert (tmp_path / "tokenizer.json").is_file()
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("tower", [SentenceEncoder, CrossEncoder])
def test_modernbert_has_its_old_names_too(tmp_path, tower):
    """Fails if TEI refuses a ModernBERT, or the keys for it change what transformers reads: layers and angles."""
    encoder = tower.from_pretrained(str(save_family("modernbert", tmp_path / "start")))
    encoder.save_pretrained(tmp_path / "saved")
    saved = read_json(str(tmp_path / "saved"), "config.json")
    names = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
    assert [saved[name] for name in names] == [2, 160000.0, 10000.0]
    again = tower.from_pretrained(str(tmp_path / "saved"))
    for name in ("layer_types", "rope_parameters"):
        assert getattr(again.backbone.config, name) == getattr(encoder.backbone.config, name)
    np.testing.assert_array_equal(again.similarity(TEXTS, TEXTS[::-1]), encoder.similarity(TEXTS, TEXTS[::-1]))


SENTENCES = ["怎么还款", "如何还款", "今天天气不错"]


@pytest.mark.parametrize("unit", [False, True])
def test_truncated_vectors_are_the_first_numbers(tiny_model, tmp_path, unit):
    """Fails if a truncated model, saved and loaded here or in sentence-transformers, gives other numbers."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    vectors = encoder.encode(SENTENCES)
    if unit:
        encoder.after_pooling.append(Normalize())
    rules = encoder.rules
    for dim in (0, 4096):
        with pytest.raises(InputError, match=str(dim)):
            encoder.truncate(dim)
    encoder.truncate(8)
    first = vectors[:, :8]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True) if unit else first
    assert encoder.embedding_dimension == 8 and encoder.rules != rules
    np.testing.assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-6)
    encoder.save_pretrained(tmp_path)
    loaded = SentenceEncoder.from_pretrained(str(tmp_path))
    assert np.array_equal(loaded.encode(SENTENCES), encoder.encode(SENTENCES))
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path)).encode(SENTENCES), expected, atol=1e-6)
    theirs = SentenceTransformer(str(tiny_model), truncate_dim=8)
    np.testing.assert_allclose(theirs.encode(SENTENCES, normalize_embeddings=unit), expected, atol=1e-6)


def test_principal_directions(tiny_model):
    """Fails if other directions than those of the greatest variance stay, or all of them change a cosine."""
    sentences = [f"{chr(0x4E00 + 7 * number)}第{number}个问题" for number in range(60)]  # more than directions
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    vectors = encoder.encode(sentences, normalize_embeddings=True)
    values, columns = np.linalg.eigh(np.cov(vectors.T.astype(np.float64)))
    for width in (vectors.shape[1], 4):
        shorter = SentenceEncoder.from_pretrained(str(tiny_model))
        shorter.truncate(width, sentences)
        expected = vectors @ columns[:, np.argsort(-values)[:width]]
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        units = shorter.encode(sentences, normalize_embeddings=True)
        assert units.shape == (len(sentences), width)
        np.testing.assert_allclose(units @ units.T, expected @ expected.T, atol=1e-4)
        if width == vectors.shape[1]:
            np.testing.assert_allclose(units @ units.T, vectors @ vectors.T, atol=1e-5)


@pytest.mark.parametrize("text", ["[", '[{"idx": 0}]', "5"])
def test_damaged_modules_are_replaced(tmp_path, text):
    """Fails if a run cannot be resumed from before a torn checkpoint, since it ends where that is written again."""
    (tmp_path / "modules.json").write_text(text, encoding="utf-8")
    remove_modules(tmp_path)
    assert not list(tmp_path.iterdir())
