"""flash_attention_2 with a reference kernel in its place, which refuses float32 as the real one does."""

import logging

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import modeling_flash_attention_utils

from cosent.compute import packed_backbone
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from tests.families import save_family

TEXTS = ["一丁丂七", "丄丅丆万丈三上下丌不", "与", "丏丐丑丒专且丕"]


@pytest.fixture
def kernel_calls(monkeypatch):
    """Puts a reference kernel in the place of flash-attn's; gives the types that it was called with."""
    calls = []

    def varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, **options):  # (tokens, heads, width)
        calls.append(query.dtype)
        if query.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        bounds = cu_seqlens_q.tolist()
        parts = []
        for start, end in zip(bounds[:-1], bounds[1:], strict=True):
            sentence = [tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value)]
            parts.append(scaled_dot_product_attention(*sentence)[0].transpose(0, 1))
        return torch.cat(parts)

    kernels = ((None, varlen, None, None, None), (lambda **options: {}, None))
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_, **__: kernels)
    packed_backbone.say_flash_computes_in_half.cache_clear()
    return calls


def with_flash(encoder):
    encoder.backbone.config._attn_implementation = "flash_attention_2"
    return encoder


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "electra", "albert"])
@pytest.mark.parametrize("tower", [SentenceEncoder, CrossEncoder])
def test_float32_weights_meet_the_kernel_in_half_precision(name, tower, kernel_calls, tmp_path, caplog):
    """Fails if encoding or scoring outside of a trainer's autocast ends in the kernel's own refusal."""
    folder = str(save_family(name, tmp_path / name))
    options = {"pooling": "mean"} if tower is SentenceEncoder else {"num_labels": 1}
    stock, flash = tower.from_pretrained(folder, **options), with_flash(tower.from_pretrained(folder, **options))

    def run(encoder) -> np.ndarray:
        return encoder.encode(TEXTS) if tower is SentenceEncoder else encoder.similarity(TEXTS, TEXTS[::-1])

    expected = run(stock)
    assert not kernel_calls
    with caplog.at_level(logging.INFO):
        seen = run(flash)
        run(flash)
    assert kernel_calls and set(kernel_calls) == {torch.bfloat16}
    assert caplog.text.count("computing in bfloat16") == 1
    assert np.abs(seen - expected).max() < 0.05 * np.abs(expected).max() + 0.02
    assert flash.backbone.dtype == torch.float32


@pytest.mark.parametrize("tower", ["bi_encoder", "cross_encoder"])
def test_a_whole_run_with_flash_attention(tower, kernel_calls, train, make_corpus, pairs, monkeypatch):
    """Fails if a job that trains with flash attention stops at a forward pass outside of training."""
    from cosent.training import towers

    build = towers.build_model

    def build_with_flash(*args, **kwargs):
        model = build(*args, **kwargs)
        with_flash(model.encoder if tower == "bi_encoder" else model)
        return model

    monkeypatch.setattr("cosent.train.build_model", build_with_flash)
    corpus = make_corpus({"train": pairs[:32], "validation": pairs[32:48], "test": pairs[48:]})
    folder = train(corpus, "--tower", tower, "--num_train_epochs", "1")
    assert len(kernel_calls) > 4 and (folder / "run.json").is_file()
