"""A saved folder must mean the same vectors to us, to sentence-transformers and to AutoModel."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.pooling import CHOICES

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]


@pytest.mark.parametrize("pooling", [*CHOICES, "cls+mean", "mean+cls", "mean+lasttoken+max", "max+attention"])
def test_sentence_transformers_and_we_read_what_the_other_saved(tiny_model, tmp_path, pooling):
    """Fails if saving loses a part, or a folder has other vectors in sentence-transformers or after a round trip."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling, max_length=16, seed=7)
    encoder.save_pretrained(tmp_path / "ours")
    trust = {"trust_remote_code": "attention" in pooling}  # for the class that modules.json names
    served = SentenceTransformer(str(tmp_path / "ours"), device="cpu", **trust)
    served.save(str(tmp_path / "theirs"))
    again = SentenceTransformer(str(tmp_path / "theirs"), device="cpu", **trust)
    reloaded = SentenceEncoder.from_pretrained(str(tmp_path / "ours"))
    np.testing.assert_array_equal(reloaded.encode(TEXTS), encoder.encode(TEXTS))
    ours = SentenceEncoder.from_pretrained(str(tmp_path / "theirs"))
    assert ours.modules_after_backbone == reloaded.modules_after_backbone == encoder.modules_after_backbone
    assert (ours.max_length, reloaded.max_length, served.max_seq_length) == (16, 16, 16) and len(TEXTS[1]) > 16
    assert again.get_embedding_dimension() == encoder.embedding_dimension
    expected = encoder.encode(TEXTS)
    assert np.std(expected, axis=0).max() > 1e-3, "all vectors are alike: nothing was compared"
    for vectors in (served.encode(TEXTS), again.encode(TEXTS), ours.encode(TEXTS)):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_only_attention_needs_this_package_in_sentence_transformers(tiny_model, tmp_path):
    """Fails if a server without this package pools in another way in silence, or refuses what it could compute."""
    for pooling in CHOICES:
        SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling).save_pretrained(tmp_path / pooling)
        modules = json.loads((tmp_path / pooling / "modules.json").read_text(encoding="utf-8"))
        foreign = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
        assert foreign == (["cosent.models.pooling.Pooling"] if pooling == "attention" else [])
    with pytest.raises(ValueError, match=r"cosent\.models\.pooling\.Pooling"):
        SentenceTransformer(str(tmp_path / "attention"), device="cpu")


def test_another_pooling_in_the_same_folder_leaves_nothing_behind(tiny_model, tmp_path):
    """Fails if TEI or sentence-transformers finds files of the pooling that a folder had before."""
    for pooling in ("first_last_mean", "linear_cls", "mean"):
        SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["1_Pooling"]
    settings = json.loads((tmp_path / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 512, "do_lower_case": False}


def test_weighted_layers_of_others_are_refused(tiny_model, tmp_path):
    """Fails if a folder that weights the layers otherwise is read as first_last_mean."""
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="first_last_mean").save_pretrained(tmp_path)
    file = tmp_path / "1_WeightedLayerPooling" / "model.safetensors"
    weights = load_file(file)["layer_weights"]
    assert weights.tolist() == [1.0, 1.0]
    save_file({"layer_weights": weights + torch.tensor([1.0, 0.0])}, file)
    with pytest.raises(InputError, match="1_WeightedLayerPooling: other layers than"):
        SentenceEncoder.from_pretrained(str(tmp_path))
