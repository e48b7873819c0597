"""What a starting folder has comes out again: in every direction between sentence-transformers and us."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoModel

from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.inference.embedding import quantized
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.folder import read_json, write_json
from cosent.models.modules import ACTIVATIONS, Module
from tests.published import bge_zh, qwen3_embedding

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]


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


def test_everything_comes_out_again(start, tmp_path):
    """Fails if a starting folder loses a module, a prompt, a setting or a trained weight by loading and saving."""
    SentenceEncoder.from_pretrained(str(start)).save_pretrained(tmp_path / "ours")
    vectors = same_to_all(tmp_path / "ours", tmp_path / "again")
    np.testing.assert_allclose(vectors, theirs(start), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors.shape == (4, 20)
    for folder in (tmp_path / "ours", tmp_path / "again"):
        assert kinds(folder) == kinds(start) and len(kinds(folder)) == 7
        settings = read_json(str(start), "config_sentence_transformers.json")
        assert read_json(str(folder), "config_sentence_transformers.json") == settings
        assert settings["default_prompt_name"] == "query" and settings["similarity_fn_name"] == "dot"
        weights = pooler(folder)
        assert len(weights) == 2 and all(torch.equal(weights[name], value) for name, value in pooler(start).items())
    assert read_json(str(tmp_path / "ours"), "sentence_bert_config.json")["max_seq_length"] == 24
    _, report = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert not any("pooler" in name for name, _ in SentenceEncoder.from_pretrained(str(start)).named_parameters())
    assert read_json(str(start), "1_Pooling/config.json")["pooling_mode"] == ["cls", "mean"]  # which TEI refuses
    config = read_json(str(tmp_path / "ours"), "1_Pooling/config.json")
    assert config.pop("word_embedding_dimension") == 32 and len(config) == 6
    assert {key for key, value in config.items() if value} == {"pooling_mode_cls_token", "pooling_mode_mean_tokens"}


@pytest.mark.parametrize("publish", [bge_zh, qwen3_embedding])
def test_published_folders_come_out_again(publish, tmp_path):
    """Fails if vectors of a tuned bge or Qwen3-Embedding have another length: indexes of dot products break then."""
    publish(tmp_path / "start")
    SentenceEncoder.from_pretrained(str(tmp_path / "start")).save_pretrained(tmp_path / "ours")
    vectors = same_to_all(tmp_path / "ours", tmp_path / "again")
    start = theirs(tmp_path / "start", model_kwargs={"dtype": torch.float32})
    np.testing.assert_allclose(vectors, start, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    before = read_json(str(tmp_path / "start"), "config_sentence_transformers.json")
    after = read_json(str(tmp_path / "ours"), "config_sentence_transformers.json")
    assert {key: after[key] for key in before} == before and kinds(tmp_path / "ours") == kinds(tmp_path / "start")
    assert pooler(tmp_path / "ours").keys() == pooler(tmp_path / "start").keys()
    assert read_json(str(tmp_path / "ours"), "config.json")["dtype"] == "float32"


@pytest.mark.parametrize("flags", [(), ("--use_peft", "true"), ("--bf16", "true", "--loss", "sbert")])
def test_training_keeps_what_it_does_not_train(start, train, make_corpus, pairs, tmp_path, flags):
    """Fails if a run loses a part of its starting folder, or leaves a Dense layer as it was."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:32]})
    folder = train(corpus, "--model_name_or_path", str(start), *flags)
    vectors = same_to_all(folder, tmp_path / "again")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors - ours(start)).max() > 1e-2
    assert kinds(folder) == kinds(start)
    weights = pooler(folder)
    assert len(weights) == 2 and all(torch.equal(weights[name], value) for name, value in pooler(start).items())
    for place in ("2_Dense", "3_Dense", "4_LayerNorm"):
        before, after = load_file(start / place / "model.safetensors"), load_file(folder / place / "model.safetensors")
        assert before.keys() == after.keys()
        assert all(after[name].dtype == torch.float32 for name in after)
        assert not any(torch.equal(before[name], after[name]) for name in before)
    assert read_json(str(folder), "config.json")["dtype"] == "float32"
    if "--use_peft" in flags:  # and a checkpoint lacks no weight of theirs
        again = ("--model_name_or_path", str(start), *flags, "--resume_from_checkpoint", str(folder / "checkpoint-4"))
        resumed = train(corpus, *again, output="resumed")
        for name in ("model.safetensors", "2_Dense/model.safetensors", "4_LayerNorm/model.safetensors"):
            ends = [(run / "checkpoint-8" / name).read_bytes() for run in (folder, resumed)]
            assert ends[0] == ends[1] != (folder / "checkpoint-4" / name).read_bytes(), name


def test_int8_runs_through_all_modules(start):
    """Fails if int8 leaves out what comes after the pooling."""
    encoder = SentenceEncoder.from_pretrained(str(start))
    vectors, exact = quantized(encoder).encode(TEXTS), encoder.encode(TEXTS)
    assert vectors.shape == (4, 20) and 0 < np.abs(vectors - exact).max() < 0.1
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_checkpoint_with_other_modules_is_refused(start, tiny_model, tmp_path):
    """Fails if a run resumes from a folder whose weights belong to other modules."""
    SentenceEncoder.from_pretrained(str(start)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="Pooling.*Normalize.*without a Sentence-BERT head"):
        BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model))).saved_state(tmp_path)


def test_another_pooling_keeps_only_modules_without_weights(start, caplog):
    """Fails if a Dense layer reads vectors that it was not trained on, or goes without a word."""
    encoder = SentenceEncoder.from_pretrained(str(start), pooling="lasttoken")
    assert [type(module).__name__ for module in encoder.after_pooling] == ["Dropout", "Normalize"]
    for lost in ("2_Dense", "3_Dense", "4_LayerNorm"):
        assert f"--pooling lasttoken starts without {lost} of {start}" in caplog.text
    assert len(SentenceEncoder.from_pretrained(str(start), pooling="cls+mean").after_pooling) == 5
    linear = SentenceEncoder.from_pretrained(str(start), pooling="linear_cls")
    assert [type(module).__name__ for module in linear.after_pooling] == ["Dense", "Dropout", "Normalize"]
    assert linear.embedding_dimension == 32


def test_linear_cls_of_a_folder_stays_as_it_is(tiny_model, tmp_path):
    """Fails if --pooling linear_cls draws a new layer where the folder has a trained one."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls", seed=1)
    encoder.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(str(tmp_path), pooling="linear_cls", seed=2)
    assert torch.equal(again.after_pooling[0].linear.weight, encoder.after_pooling[0].linear.weight)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_encoders_are_float32_elsewhere(name):
    """Fails if sentence-transformers trains a shipped encoder in half precision, slowly and with other results."""
    served = SentenceTransformer(resolve(name), device="cpu")
    assert {weight.dtype for weight in served.parameters()} == {torch.float32}
    assert AutoModel.from_pretrained(resolve(name)).dtype == torch.float32
    encoder = SentenceEncoder.from_pretrained(name)
    encoder.packing = False  # mini-roformer's table of sines is in half precision: not exact at other places in a row
    np.testing.assert_allclose(theirs(resolve(name)), encoder.encode(TEXTS), rtol=0, atol=2e-6)
    assert {weight.dtype for weight in load_file(f"{resolve(name)}/model.safetensors").values()} == {torch.float16}


def test_what_is_not_computed_is_named(start, tmp_path):
    """Fails if a setting that changes vectors is ignored, or the user is not told which file has it."""
    cases = [
        ("2_Dense/config.json", {"activation_function": "own.Swish"}, "2_Dense/config.json: .*own.Swish"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.GLU"}, "torch.nn.GLU.*Identity, ReLU"),
        ("2_Dense/config.json", {"gate": True}, "2_Dense/config.json describes an unsupported Dense .*'gate'"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "'module_input_name'"),
        ("3_Dense/config.json", {"in_features": 30}, "3_Dense/config.json: .* width 30, got 48"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "1_Pooling/config.json: pooling median"),
        ("1_Pooling/config.json", {"temperature": 2}, "1_Pooling/config.json: temperature"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim = 8"),
        ("sentence_bert_config.json", {"processor_kwargs": {"x": 1}}, "sentence_bert_config.json: processor_kwargs"),
        ("sentence_bert_config.json", {"module_output_name": "scores"}, "module_output_name = 'scores'"),
        ("sentence_bert_config.json", {"modality_config": {"text": {"method": "talk"}}}, "modality_config"),
        ("sentence_bert_config.json", {"whatever": 1}, "whatever = 1"),
    ]
    folder = shutil.copytree(start, tmp_path / "changed")
    for file, change, message in cases:
        before = read_json(str(folder), file)
        write_json(folder / file, before | change)
        with pytest.raises(InputError, match=message):
            SentenceEncoder.from_pretrained(str(folder))
        write_json(folder / file, before)
    listed = read_json(str(folder), "modules.json")
    for place, kind, message in (
        (3, "own_code.Router", "modules.json: own_code.Router"),
        (1, "sentence_transformers.sparse_encoder.modules.SpladePooling", "modules.json: SpladePooling"),
        (0, "sentence_transformers.models.CLIPModel", "modules.json: CLIPModel"),
    ):
        write_json(folder / "modules.json", [one | ({"type": kind} if one["idx"] == place else {}) for one in listed])
        with pytest.raises(InputError, match=rf"{message}.*--pooling"):
            SentenceEncoder.from_pretrained(str(folder))
        assert SentenceEncoder.from_pretrained(str(folder), pooling="mean").pooling.mode == "mean"
    write_json(folder / "modules.json", listed)
    (folder / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"3_Dense: .*linear.weight': \(20, 48\).* of a Dense, got none"):
        SentenceEncoder.from_pretrained(str(folder))


@pytest.mark.parametrize("name", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_lower_case_and_length_of_older_folders(tiny_model, tmp_path, name):
    """Fails if a folder of an older sentence-transformers reads capitals or long sentences otherwise here."""
    SentenceEncoder.from_pretrained(str(tiny_model)).save_pretrained(tmp_path / "start")
    tokenizer = read_json(str(tmp_path / "start"), "tokenizer_config.json")
    write_json(tmp_path / "start" / "tokenizer_config.json", tokenizer | {"do_lower_case": False})
    (tmp_path / "start" / "sentence_bert_config.json").unlink()
    cased = SentenceEncoder.from_pretrained(str(tmp_path / "start")).encode(TEXTS)
    write_json(tmp_path / "start" / name, {"max_seq_length": 8, "do_lower_case": True})
    SentenceEncoder.from_pretrained(str(tmp_path / "start")).save_pretrained(tmp_path / "ours")
    vectors = SentenceEncoder.from_pretrained(str(tmp_path / "ours")).encode(TEXTS)
    for folder in (tmp_path / "start", tmp_path / "ours"):
        served = SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(served.encode(TEXTS), vectors, rtol=0, atol=1e-6)
    assert (np.abs(vectors - cased).max(axis=1) > 1e-3).tolist() == [False, True, False, True]
    settings = {"max_seq_length": 8, "do_lower_case": True}
    assert read_json(str(tmp_path / "ours"), "sentence_bert_config.json") == settings


SIMILARITIES = [
    ("cosine", "Dropout", False),
    ("dot", "Normalize", False),
    ("dot", "Dropout", True),
    ("euclidean", "Normalize", True),
]


@pytest.mark.parametrize(("similarity", "last", "told"), SIMILARITIES)
def test_other_similarity_functions(start, tmp_path, caplog, similarity, last, told):
    """Fails if a user whose folder compares by dot products is not told that cosines are trained here."""
    folder = shutil.copytree(start, tmp_path / "changed")
    listed = read_json(str(folder), "modules.json")
    write_json(folder / "modules.json", listed if last == "Normalize" else listed[:-1])
    settings = read_json(str(folder), "config_sentence_transformers.json")
    write_json(folder / "config_sentence_transformers.json", settings | {"similarity_fn_name": similarity})
    for _ in range(2):
        SentenceEncoder.from_pretrained(str(folder)).save_pretrained(tmp_path / "ours")
    assert caplog.text.count("similarity_fn_name") == int(told)
    kept = read_json(str(tmp_path / "ours"), "config_sentence_transformers.json")
    assert kept["similarity_fn_name"] == similarity


@pytest.mark.parametrize("residual", [False, True])
def test_every_activation(residual):
    """Fails if a Dense layer computes another function than in sentence-transformers."""
    for name in ACTIVATIONS:
        theirs = modules.Dense(6, 4, activation_function=getattr(torch.nn, name)(), use_residual=residual).eval()
        ours = Module("Dense", "2_Dense", theirs.get_config_dict()).build("model", 6).eval()
        ours.load_state_dict(theirs.state_dict())
        vectors = torch.randn(5, 6)
        expected = theirs({"sentence_embedding": vectors})["sentence_embedding"]
        torch.testing.assert_close(ours(vectors), expected, msg=name)
        assert ours.config() == {key: value for key, value in theirs.get_config_dict().items() if "module" not in key}
