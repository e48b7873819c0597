"""Settings of a starting folder: applied and kept, or refused by name."""

import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.folder import read_json, write_json

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]
BAD_CONFIGS = [
    ("2_Dense/config.json", {"activation_function": "own.Swish"}, "2_Dense/config.json names the activation own.Swish"),
    ("2_Dense/config.json", {"activation_function": "torch.nn.GLU"}, "which is none of torch.nn .*Identity, ReLU"),
    ("2_Dense/config.json", {"gate": True}, "2_Dense/config.json describes a Dense by .*'gate'"),
    ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "'module_input_name'"),
    ("3_Dense/config.json", {"in_features": 30}, "3_Dense/config.json describes a Dense of vectors of width 30.* 48"),
    ("1_Pooling/config.json", {"pooling_mode": "median"}, "1_Pooling/config.json says pooling median"),
    ("1_Pooling/config.json", {"temperature": 2}, "1_Pooling/config.json says temperature"),
    ("config_sentence_transformers.json", {"truncate_dim": 8}, "sets truncate_dim to 8"),
    ("sentence_bert_config.json", {"processor_kwargs": {"x": 1}}, "sentence_bert_config.json sets processor_kwargs"),
    ("sentence_bert_config.json", {"module_output_name": "scores"}, "sets module_output_name to 'scores'"),
    ("sentence_bert_config.json", {"modality_config": {"text": {"method": "talk"}}}, "sets modality_config"),
    ("sentence_bert_config.json", {"whatever": 1}, "sets whatever to 1"),
]


@pytest.mark.parametrize(("file", "change", "message"), BAD_CONFIGS)
def test_what_is_not_computed_is_named(start, tmp_path, file, change, message):
    """Fails if a setting that changes vectors is ignored, or the user is not told which file has it."""
    folder = shutil.copytree(start, tmp_path / "changed")
    write_json(folder / file, read_json(str(folder), file) | change)
    with pytest.raises(InputError, match=message):
        SentenceEncoder.from_pretrained(str(folder))


def test_unknown_modules_are_named(start, tmp_path):
    """Fails if a module that is not computed here is left out in silence, or the way out of it does not work."""
    folder = shutil.copytree(start, tmp_path / "changed")
    listed = read_json(str(folder), "modules.json")
    for place, kind, message in (
        (3, "own_code.Router", "modules.json names the module own_code.Router"),
        (1, "sentence_transformers.sparse_encoder.modules.SpladePooling", "names SpladePooling where its pooling"),
        (0, "sentence_transformers.models.CLIPModel", "begins with CLIPModel"),
    ):
        write_json(folder / "modules.json", [one | ({"type": kind} if one["idx"] == place else {}) for one in listed])
        with pytest.raises(InputError, match=rf"does not compute: .*{message}.*Name a --pooling"):
            SentenceEncoder.from_pretrained(str(folder))
        assert SentenceEncoder.from_pretrained(str(folder), pooling="mean").pooling.mode == "mean"


def test_a_module_without_its_weights(start, tmp_path):
    """Fails if a folder that was copied in part gives vectors of a layer that starts at random."""
    folder = shutil.copytree(start, tmp_path / "in_part")
    (folder / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"linear.weight': \(20, 48\).* of a Dense in .*3_Dense, got none"):
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
    assert caplog.text.count(f"asks sentence-transformers for {similarity} similarity") == int(told)
    kept = read_json(str(tmp_path / "ours"), "config_sentence_transformers.json")
    assert kept["similarity_fn_name"] == similarity
