"""Every architecture of `support/families.py`, as either tower: loaded, trained, packed, saved, loaded by others."""

import logging

import numpy as np
import pytest
import torch
from peft import PeftModel
from sentence_transformers import CrossEncoder as TheirCrossEncoder
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

from cosent.compute.packing import POSITIONS
from cosent.data.pairs import JoinedPairCollator, PairCollator, tokenize_apart, tokenize_joined
from cosent.errors import InputError
from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.lora import ADAPTER_FOLDER, add_adapter, lora_config
from cosent.models.modules import classifier_heads
from tests.compute.test_packing import tokens_computed
from tests.support.families import FAMILIES, LETTERS, LONGEST, each, save_family

FINE = [name for name in FAMILIES if name not in ("t5", "convbert")]
# sentence-transformers pads on the left as its tokenizer says, which shifts the absolute positions of gpt2.
SHIFTED_BY_OTHERS = ("gpt2",)


def sentences(lengths=(1, 3, 5, 2, 9, 30, 4, 62, 7, 3)) -> list[str]:
    letters = np.random.default_rng(0).choice(LETTERS, size=(len(lengths), LONGEST))
    return ["".join(row[:length]) for row, length in zip(letters, lengths, strict=True)]


TEXTS = sentences()
FIRST, SECOND = sentences((1, 3, 5, 2, 9)), sentences((20, 4, 30, 7, 3))
COLUMNS = {"sentence1": FIRST, "sentence2": SECOND}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a function that gives the folder of a family, made once."""
    folders = {}

    def get(name: str) -> str:
        if name not in folders:
            folders[name] = str(save_family(name, tmp_path_factory.mktemp("family")))
        return folders[name]

    return get


def assert_all_learn(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """One step of CoSENT reaches every trainable weight with a gradient that is finite and not all zero."""
    scores = model.train()(**batch)["scores"]
    cosent_loss(scores, torch.arange(len(scores), dtype=torch.float32)).backward()
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert not [name for name, weight in weights.items() if weight.grad is None]
    gradients = [weight.grad for weight in weights.values()]
    assert all(gradient.isfinite().all() for gradient in gradients) and sum(g.abs().sum() for g in gradients) > 0


SEPARATED = [name for name in FINE if name != "qwen2"]  # its tokenizer here puts nothing between two sentences


@pytest.mark.parametrize("name", each(FINE))
def test_a_bi_encoder(name, folder, tmp_path, caplog):
    """Fails if an architecture trains in part, packs inexactly, or its saved folder gives others other vectors."""
    with caplog.at_level(logging.WARNING):
        encoder = SentenceEncoder.from_pretrained(folder(name), pooling="mean")
    assert "not verified" not in caplog.text
    tokens = tokenize_apart(COLUMNS, encoder.tokenizer, encoder.max_length)
    rows = [(a, b, {}) for a, b in zip(tokens["input_ids1"], tokens["input_ids2"], strict=True)]
    assert_all_learn(BiEncoder(encoder), PairCollator.from_tokenizer(encoder.tokenizer)(rows))

    packed = encoder.encode(TEXTS)
    assert packed.std(axis=0).min() > 1e-3, "all sentences are alike: nothing was compared"
    encoder.packing = False
    padded = encoder.encode(TEXTS)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    scale = np.abs(alone).max()
    np.testing.assert_allclose(packed / scale, alone / scale, atol=2e-6)
    np.testing.assert_allclose(padded / scale, alone / scale, atol=2e-6)

    encoder.save_pretrained(tmp_path)
    np.testing.assert_array_equal(SentenceEncoder.from_pretrained(str(tmp_path)).encode(TEXTS), packed)
    if name not in SHIFTED_BY_OTHERS:
        theirs = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(theirs / scale, packed / scale, atol=2e-6)

    encoder.tokenizer.model_max_length = int(1e30)  # a sentence has a position for every token all the same
    assert name == "roformer" or encoder.max_length in (LONGEST, 2**20)
    assert np.isfinite(encoder.encode(["".join(LETTERS)])).all()


@pytest.mark.parametrize("name", ["albert", *each(name for name in SEPARATED if name != "albert")])
def test_a_cross_encoder(name, folder, tmp_path):
    """Fails if a classifier's head reads something else on packed rows, misses training, ties in half precision, or
    scores otherwise for others.

    Besides the representatives: a pooler that is a bare linear layer, which `KnownTokens` has a branch for.
    """
    encoder = CrossEncoder.from_pretrained(folder(name), num_labels=2, seed=3)
    if name == "modernbert":  # has two ways, and others read [CLS] too
        encoder.model.config.classifier_pooling = "mean"
    pairs = tokenize_joined(COLUMNS, encoder.tokenizer, encoder.max_length)
    rows = [(ids, first, {}) for ids, first in zip(pairs["input_ids"], pairs["first_tokens"], strict=True)]
    batch = JoinedPairCollator.from_tokenizer(encoder.tokenizer)(rows)
    assert_all_learn(encoder, batch)

    packed = encoder.eval().similarity(FIRST, SECOND)
    alone = np.concatenate([encoder.similarity([a], [b]) for a, b in zip(FIRST, SECOND, strict=True)])
    np.testing.assert_allclose(packed, alone, atol=1e-5)
    with torch.no_grad():
        logits, tokens = tokens_computed(encoder.backbone, lambda: encoder(**batch)["logits"])
        stock = encoder.model(**batch).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = encoder(**batch)["logits"]
    assert (tokens < batch["input_ids"].numel()) == (encoder.model.config.model_type in POSITIONS)
    assert stock.std() > 1e-3, "all logits are alike: nothing was compared"
    torch.testing.assert_close(logits, stock, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(packed, stock[:, 1] - stock[:, 0], atol=1e-5)
    assert half.dtype == torch.float32
    assert not torch.equal(half, half.bfloat16().float()), "the head computed in bfloat16"

    encoder.save_pretrained(tmp_path)
    np.testing.assert_array_equal(CrossEncoder.from_pretrained(str(tmp_path)).similarity(FIRST, SECOND), packed)
    if name not in SHIFTED_BY_OTHERS:
        theirs = TheirCrossEncoder(str(tmp_path), device="cpu").predict(list(zip(FIRST, SECOND, strict=True)))
        np.testing.assert_allclose(theirs[:, 1] - theirs[:, 0], packed, atol=1e-5)


@pytest.mark.parametrize("name", each(SEPARATED))
def test_fresh_heads_train_under_lora(name, folder, tmp_path, caplog):
    """Fails if a fresh head stays frozen at random under LoRA, a linear layer gets no adapter or is not in the log, or
    `adapter/` over the same base gives other scores."""
    encoder = CrossEncoder.from_pretrained(folder(name), num_labels=1, seed=3)
    heads = tuple(f"{head}." for head in classifier_heads(encoder.model))
    linear = [path for path, module in encoder.model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    outside = {path for path in linear if not f"{path}.".startswith(heads)}

    other_seed = CrossEncoder.from_pretrained(folder(name), num_labels=1, seed=4).state_dict()
    fresh = {weight for weight, value in encoder.state_dict().items() if not torch.equal(value, other_seed[weight])}
    with caplog.at_level(logging.INFO):
        adapter = add_adapter(encoder, encoder.model, lora_config(4, 8.0, 0.0, ["all-linear"]), seed=1)
    assert fresh and fresh <= {weight.replace(".modules_to_save.default", "") for weight in adapter.trained}
    layers = [weight.split(".")[-4] for weight in adapter.trained if weight.endswith("lora_A.default.weight")]
    assert len(layers) == len(outside) > 0
    assert all(f"{layers.count(layer)} {layer}" in caplog.text for layer in layers)
    with torch.no_grad():
        for weight in encoder.parameters():
            if weight.requires_grad:
                weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    scores = encoder.similarity(FIRST, SECOND)
    adapter.save(tmp_path, encoder.state_dict())
    encoder.save_pretrained(tmp_path, adapter.merged(encoder.state_dict()))
    merged = CrossEncoder.from_pretrained(str(tmp_path)).similarity(FIRST, SECOND)
    np.testing.assert_allclose(merged, scores, atol=2e-5)

    with torch.random.fork_rng():  # as somebody else loads it: the head of the base is random, and another one
        torch.manual_seed(99)
        base = AutoModelForSequenceClassification.from_pretrained(folder(name), num_labels=1)
    theirs = PeftModel.from_pretrained(base, tmp_path / ADAPTER_FOLDER).get_base_model()
    theirs.config.pad_token_id = encoder.tokenizer.pad_token_id
    again = CrossEncoder(theirs, encoder.tokenizer).similarity(FIRST, SECOND)
    np.testing.assert_allclose(again, scores, atol=2e-5)


@pytest.mark.parametrize("name", each(SEPARATED))
def test_dropout_has_a_name(name, folder, caplog):
    """Fails if --dropout leaves a place as it was, or does not say which ones an architecture has.

    Qwen3 and LLaMA, for example, have dropout in attention alone.
    """
    with caplog.at_level(logging.INFO):
        encoder = CrossEncoder.from_pretrained(folder(name), num_labels=1, dropout=0.37)
    values = {path: module.p for path, module in encoder.named_modules() if isinstance(module, torch.nn.Dropout)} | {
        f"{path}.{field}": value
        for path, module in encoder.named_modules()
        for field, value in vars(module).items()
        if "dropout" in field and isinstance(value, float)
    }
    assert values and set(values.values()) == {0.37}, values
    assert "--dropout 0.37 sets " in caplog.text


def test_what_would_give_wrong_vectors_is_refused_or_told(folder, caplog):
    """Fails if a model that embeds nothing, is not verified, or is pooled by a token that sees no other, is silent."""
    for name, pooling, message in (("t5", "mean", "t5"), ("qwen3", "cls", "cls.*qwen3"), ("gpt2", "cls", "cls.*gpt2")):
        with pytest.raises(InputError, match=message):
            SentenceEncoder.from_pretrained(folder(name), pooling=pooling)
    with caplog.at_level(logging.WARNING):
        SentenceEncoder.from_pretrained(folder("convbert"), pooling="mean")
    assert "convbert models are not verified" in caplog.text
