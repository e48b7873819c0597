"""A checkpoint must mean the same sentences to us, to sentence-transformers and to AutoModel."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.pooling import POOLINGS, Pooling

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "linear_cls"])
def test_sentence_transformers_gives_the_same_vectors(tiny_model, tmp_path, pooling):
    """Fails if a served model answers differently from the one that was measured, also for too long sentences."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling, max_length=16)
    encoder.save_pretrained(tmp_path)
    served = SentenceTransformer(str(tmp_path), device="cpu")
    assert served.max_seq_length == 16 < len(TEXTS[1])
    np.testing.assert_allclose(served.encode(TEXTS), encoder.encode(TEXTS), atol=1e-5)
    assert np.std(encoder.encode(TEXTS), axis=0).max() > 1e-3, "all vectors are alike: nothing was compared"


@pytest.mark.parametrize("pooling", POOLINGS)
def test_reloading_gives_the_same_vectors(tiny_model, tmp_path, pooling):
    """Fails if saving loses the pool, its weights or the maximum length."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling, max_length=16, seed=7)
    encoder.save_pretrained(tmp_path)
    again = SentenceEncoder.from_pretrained(str(tmp_path))
    assert (again.pooling.mode, again.max_length) == (pooling, 16)
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_sentence_transformers_and_we_read_what_the_other_saved(tiny_model, tmp_path, pooling):
    """Fails if a folder means another pooling after sentence-transformers loaded it and saved it again."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling, max_length=16, seed=7)
    encoder.save_pretrained(tmp_path / "ours")
    trust = {"trust_remote_code": pooling == "attention"}  # for the class that modules.json names
    served = SentenceTransformer(str(tmp_path / "ours"), device="cpu", **trust)
    served.save(str(tmp_path / "theirs"))
    again = SentenceTransformer(str(tmp_path / "theirs"), device="cpu", **trust)
    ours = SentenceEncoder.from_pretrained(str(tmp_path / "theirs"))
    assert (ours.pooling.mode, ours.max_length, served.max_seq_length) == (pooling, 16, 16)
    assert again.get_embedding_dimension() == encoder.pooling.hidden_size
    expected = encoder.encode(TEXTS)
    assert np.std(expected, axis=0).max() > 1e-3, "all vectors are alike: nothing was compared"
    for vectors in (served.encode(TEXTS), again.encode(TEXTS), ours.encode(TEXTS)):
        np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_only_attention_needs_this_package_in_sentence_transformers(tiny_model, tmp_path):
    """Fails if a server without this package pools in another way in silence, or refuses what it could compute."""
    for pooling in POOLINGS:
        SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling).save_pretrained(tmp_path / pooling)
        modules = json.loads((tmp_path / pooling / "modules.json").read_text(encoding="utf-8"))
        foreign = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
        assert foreign == (["cosent.modeling.pooling.Pooling"] if pooling == "attention" else [])
    with pytest.raises(ValueError, match=r"cosent\.modeling\.pooling\.Pooling"):
        SentenceTransformer(str(tmp_path / "attention"), device="cpu")


def test_a_batch_without_padding_is_refused():
    """Fails if sentences that flash attention reads in one row are pooled to a single vector."""
    with pytest.raises(ValueError, match=r"unpad_inputs = False"):
        Pooling("attention", 8)({"token_embeddings": torch.zeros(1, 5, 8)})


def test_another_pooling_in_the_same_folder_leaves_nothing_behind(tiny_model, tmp_path):
    """Fails if TEI or sentence-transformers finds files of the pooling that a folder had before."""
    for pooling in ("first_last_mean", "linear_cls", "mean"):
        SentenceEncoder.from_pretrained(str(tiny_model), pooling=pooling).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["1_Pooling"]
    assert not (tmp_path / "sentence_bert_config.json").exists()


def test_weighted_layers_of_others_are_refused(tiny_model, tmp_path):
    """Fails if a folder that weights the layers otherwise is read as first_last_mean."""
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="first_last_mean").save_pretrained(tmp_path)
    file = tmp_path / "1_WeightedLayerPooling" / "model.safetensors"
    weights = load_file(file)["layer_weights"]
    assert weights.tolist() == [1.0, 1.0]
    save_file({"layer_weights": weights + torch.tensor([1.0, 0.0])}, file)
    with pytest.raises(InputError, match="pooling mean of weighted layers"):
        SentenceEncoder.from_pretrained(str(tmp_path))


def test_auto_model_reads_the_backbone(tiny_model, tmp_path):
    """Fails if the tuned weights are not where transformers looks for them."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls")
    with torch.no_grad():
        next(encoder.backbone.parameters()).mul_(2.0)
    encoder.save_pretrained(tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(tmp_path)(**inputs).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(encoder.encode(TEXTS[:1]), expected, atol=1e-5)


@pytest.mark.parametrize("mode", POOLINGS)
def test_padding_never_enters_a_pool(mode):
    """Fails if a sentence's vector depends on what else is in its batch (bojone/CoSENT#2: mean over padding)."""
    pooling = Pooling(mode, 8)
    tokens = torch.randn(1, 3, 8)
    padded = torch.cat([tokens, torch.full((1, 2, 8), 1e4)], dim=1)
    alone = pooling.pool(tokens, torch.ones(1, 3, dtype=torch.long))
    together = pooling.pool(padded, torch.tensor([[1, 1, 1, 0, 0]]))
    torch.testing.assert_close(alone, together)


def test_pools_on_paper():
    """Fails if a pool computes something else than its name: tokens (1, 4), (3, 0) and one padding token."""
    tokens = torch.tensor([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert Pooling("cls", 2).pool(tokens, mask).tolist() == [[1.0, 4.0]]
    assert Pooling("mean", 2).pool(tokens, mask).tolist() == [[2.0, 2.0]]
    assert Pooling("max", 2).pool(tokens, mask).tolist() == [[3.0, 4.0]]
    attention = Pooling("attention", 2)
    with torch.no_grad():  # scores -ln 3 and 0, so weights 1/4 and 3/4: 1/4 (1, 4) + 3/4 (3, 0)
        attention.linear.weight.copy_(torch.tensor([[0.0, -math.log(3.0) / 4]]))
    torch.testing.assert_close(attention.pool(tokens, mask), torch.tensor([[2.5, 1.0]]))


def test_first_last_mean_averages_two_layers(tiny_model):
    """Fails if the pool reads the embeddings or one layer only."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="first_last_mean").eval()
    inputs = encoder.tokenizer(TEXTS[0], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        layers = encoder.backbone(**inputs, output_hidden_states=True).hidden_states
        expected = ((layers[1] + layers[-1]) / 2).mean(dim=1)
        torch.testing.assert_close(encoder(**inputs), expected)


def test_fresh_pool_weights_depend_on_the_seed_alone(tiny_model):
    """Fails if two runs with one seed start from different weights, or if loading disturbs the run's random state."""
    torch.manual_seed(1)
    first = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls", seed=3)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == drawn
    second = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls", seed=3)
    other = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls", seed=4)
    assert torch.equal(first.pooling.linear.weight, second.pooling.linear.weight)
    assert not torch.equal(first.pooling.linear.weight, other.pooling.linear.weight)


def test_the_cosine_of_a_pair_is_the_similarity(tiny_model):
    """Fails if training scores pairs in another way than `similarity` does afterwards."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean").eval()
    inputs = encoder.tokenizer(TEXTS, padding=True, return_tensors="pt", return_token_type_ids=False)
    batch = {name: value.view(2, 2, -1) for name, value in inputs.items()}
    with torch.no_grad():
        scores = BiEncoder(encoder)(**batch)["scores"]
    np.testing.assert_allclose(scores.numpy(), encoder.similarity(TEXTS[::2], TEXTS[1::2]), atol=1e-5)
    assert encoder.similarity(TEXTS[0], TEXTS[1]) == pytest.approx(scores[0].item(), abs=1e-5)


def test_dropout_is_what_was_asked_for(tiny_model):
    """Fails if --dropout changes nothing: then a comparison 'with the same dropout 0' would be none."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), dropout=0.0).train()
    ids, mask = torch.tensor([[2, 900, 3]]), torch.ones(1, 3, dtype=torch.long)
    assert torch.equal(encoder(ids, mask), encoder(ids, mask))
    default = SentenceEncoder.from_pretrained(str(tiny_model)).train()
    assert not torch.equal(default(ids, mask), default(ids, mask))


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "runs/a/b", "nobody/nothing"])
def test_a_model_that_does_not_exist(path):
    """Fails if a typo in a path ends in a stack trace of the Hub client."""
    with pytest.raises(InputError, match="There is no model|neither a model folder"):
        SentenceEncoder.from_pretrained(path)


def test_the_maximum_length_of_older_folders(tiny_model, tmp_path):
    """Fails if a folder of an older sentence-transformers, which says it in a file of its own, is read otherwise."""
    folder = tmp_path / "older"
    shutil.copytree(tiny_model, folder)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8, "do_lower_case": false}')
    assert SentenceEncoder.from_pretrained(str(folder)).max_length == 8
    assert SentenceEncoder.from_pretrained(str(folder), max_length=20).max_length == 20


def test_wrong_arguments_are_explained(tiny_model):
    """Fails if a wrong pool, length or type is accepted or answered without the valid ones."""
    with pytest.raises(InputError, match="pooling must be one of cls, mean"):
        SentenceEncoder.from_pretrained(str(tiny_model), pooling="avg")
    with pytest.raises(InputError, match="max_length must be 3 to 512"):
        SentenceEncoder.from_pretrained(str(tiny_model), max_length=1000)
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    with pytest.raises(InputError, match="row by row, got 1 and 2"):
        encoder.similarity(["好"], ["好", "坏"])


def test_a_pool_of_others_that_we_do_not_compute(tiny_model, tmp_path):
    """Fails if a sentence-transformers folder with another pool is read as if it were mean pooling."""
    SentenceEncoder.from_pretrained(str(tiny_model)).save_pretrained(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "lasttoken"}')
    with pytest.raises(InputError, match="lasttoken, which this project does not compute"):
        SentenceEncoder.from_pretrained(str(tmp_path))
    assert SentenceEncoder.from_pretrained(str(tmp_path), pooling="cls").pooling.mode == "cls"


def test_mini_is_there():
    """Fails if the embedded default is missing from the package, too large to ship, or not what it says."""
    encoder = SentenceEncoder.from_pretrained("mini")
    assert Path(resolve("mini"), "model.safetensors").stat().st_size <= 12 * 10**6
    assert len(set(encoder.tokenizer("我用iPhone12上网")["input_ids"])) >= 8
    assert encoder.tokenizer.unk_token_id not in encoder.tokenizer("谁的iPhone在2024年坏了？abcxyz")["input_ids"]
