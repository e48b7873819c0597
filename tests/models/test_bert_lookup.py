"""A table beside a BERT: rows of its own tokens and pairs of them, added to its output."""

import logging

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import keep_layers
from cosent.models.lookup import MOST_TOKENS, BertLookupModel
from tests.conftest import SENTENCES, run_train

TEXTS = [*SENTENCES, "", "好" * 40, "璟", "怎么怎么还款"]
FEW = ("--max_steps", "2", "--eval_strategy", "no", "--learning_rate", "0.01")


def keys_of(encoder: SentenceEncoder) -> np.ndarray:
    """The tokens of `SENTENCES` and every second of their pairs."""
    rows = encoder.tokenizer(SENTENCES)["input_ids"]
    pairs = sorted({first * MOST_TOKENS + second for row in rows for first, second in zip(row, row[1:], strict=False)})
    return np.array(sorted({token for row in rows for token in row} | set(pairs[::2])), np.int32)


@pytest.fixture(scope="module")
def zeros(tiny_bi, tmp_path_factory):
    """A folder with a tiny BERT and rows of zeros."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    encoder.backbone = BertLookupModel.beside(encoder.backbone, keys_of(encoder), hashed_rows=3, entry_dropout=0.1)
    folder = tmp_path_factory.mktemp("beside") / "zeros"
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def filled(zeros, tmp_path_factory):
    """The same folder with random rows."""
    encoder = SentenceEncoder.from_pretrained(str(zeros))
    generator = torch.Generator().manual_seed(0)
    torch.nn.init.normal_(encoder.backbone.lookup.table.weight, std=0.5, generator=generator)
    folder = tmp_path_factory.mktemp("beside") / "filled"
    encoder.save_pretrained(folder)
    return folder


def test_rows_of_zeros_change_no_bit(tiny_bi, zeros):
    """Fails if training with a table does not start where the BERT is."""
    vectors = [SentenceEncoder.from_pretrained(str(folder)).encode(TEXTS) for folder in (tiny_bi, zeros)]
    np.testing.assert_array_equal(*vectors)
    assert isinstance(AutoModel.from_pretrained(zeros), BertLookupModel)


def test_vectors_by_hand(tiny_bi, filled):
    """Fails if a row is taken from another place, the stride follows the vocabulary, or a pair crosses sentences."""
    encoder, bert = (SentenceEncoder.from_pretrained(str(folder)) for folder in (filled, tiny_bi))
    keys = encoder.backbone.lookup.keys.tolist()
    rows, place = encoder.backbone.lookup.table.weight.detach().numpy(), {key: row for row, key in enumerate(keys)}

    def row(key: int) -> np.ndarray:
        return rows[place.get(key, len(keys) + (key * 0x9E3779B1 >> 15) % 3)]

    expected = bert.encode(TEXTS)
    for text, vector in zip(TEXTS, expected, strict=True):
        ids = encoder.tokenizer(text)["input_ids"]
        pairs = [first * MOST_TOKENS + second for first, second in zip([0, *ids[:-1]], ids, strict=True)]
        vector += np.mean([row(token) + row(pair) for token, pair in zip(ids, pairs, strict=True)], axis=0)
    for packing in (True, False):
        encoder.packing = packing
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-5)


def test_a_longer_vocabulary_finds_the_same_rows(filled, tmp_path):
    """Fails if tokens that are appended to the vocabulary move the rows of those before."""
    encoder = SentenceEncoder.from_pretrained(str(filled))
    before = encoder.encode(SENTENCES)
    encoder.tokenizer.add_tokens(["璟"])
    encoder.backbone.resize_token_embeddings(len(encoder.tokenizer))
    encoder.save_pretrained(tmp_path)
    longer = SentenceEncoder.from_pretrained(str(tmp_path))
    np.testing.assert_allclose(longer.encode(SENTENCES), before, atol=1e-6)
    assert np.isfinite(longer.encode("璟")).all()


@pytest.mark.parametrize(
    "flags",
    [
        ("--loss", "cosent_in_batch", "--cached_batch_size", "32", "--dropout", "0.1", "--bf16", "true"),
        ("--loss", "sbert", "--packing", "false"),
        ("--loss", "simcse"),
    ],
    ids=lambda flags: flags[1],
)
def test_it_trains_as_any_backbone(zeros, made_up, tmp_path, flags, caplog):
    """Fails if `cosent train` leaves the table or the BERT as it was, or pads its batches."""
    with caplog.at_level(logging.WARNING):
        folder = run_train(zeros, made_up, tmp_path / "run", *FEW, *flags)
    assert "padded" not in caplog.text
    before, after = (load_file(place / "model.safetensors") for place in (zeros, folder))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"lookup.table.weight", "embeddings.word_embeddings.weight"} < changed and "lookup.keys" not in changed


def test_layers_and_adapters(filled, made_up, tmp_path):
    """Fails if LoRA trains the rows, a cross-encoder is started without them, or dropped layers take them along."""
    folder = run_train(filled, made_up, tmp_path / "lora", *FEW, "--use_peft", "true")
    before, after = (load_file(place / "model.safetensors") for place in (filled, folder))
    assert torch.equal(before["lookup.table.weight"], after["lookup.table.weight"])
    query = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(before[query], after[query])
    with pytest.raises(InputError, match=r"lookup.*--tower bi_encoder"):
        run_train(filled, made_up, tmp_path / "cross", *FEW, "--tower", "cross_encoder")
    encoder = SentenceEncoder.from_pretrained(str(filled))
    keep_layers(encoder.backbone, 1)
    encoder.save_pretrained(tmp_path / "one")
    assert SentenceEncoder.from_pretrained(str(tmp_path / "one")).backbone.lookup.table.weight.any()


def test_int8_rows_and_a_graph(filled, job, tmp_path):
    """Fails if rounded rows are read without their scale, or an export looks pairs up otherwise."""
    vectors = SentenceEncoder.from_pretrained(str(filled)).encode(TEXTS)
    job("cosent.jobs.merge", "--models", filled, "--dtype", "int8", "--output", tmp_path / "int8")
    weights = load_file(tmp_path / "int8" / "model.safetensors")
    kinds = {name: weight.dtype for name, weight in weights.items()}
    assert kinds.pop("lookup.table.weight") == torch.int8 and kinds.pop("lookup.keys") == torch.int32
    assert kinds.pop("lookup.scale") == torch.float32 and set(kinds.values()) == {torch.float16}
    rounded = SentenceEncoder.from_pretrained(str(tmp_path / "int8"))
    np.testing.assert_allclose(rounded.encode(TEXTS), vectors, atol=0.02)
    pytest.importorskip("onnxruntime")
    job("cosent.jobs.export", "--model", filled, "--output", tmp_path / "onnx")  # which compares the answers
