"""flash_attention_2 with a reference kernel in its place, which refuses float32 as the real one does."""

import logging

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import modeling_flash_attention_utils

from cosent.compute import packed_backbone
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.loading import check_architecture
from tests.families import each, save_family

TEXTS = ["一丁丂七", "丄丅丆万丈三上下丌不丑丒专且丕三上下丌不丑丒", "与", "丏丐丑丒专且丕"]


@pytest.fixture
def kernel_calls(monkeypatch):
    """Puts a reference kernel in the place of flash-attn's; gives the types that it was called with."""
    calls = []

    def varlen(query, key, value, cu_seqlens_q, cu_seqlens_k, causal, softmax_scale, window_size=None):
        calls.append(query.dtype)  # query, key, value: (tokens, heads, width)
        if query.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        bounds = cu_seqlens_q.tolist()
        parts = []
        for start, end in zip(bounds[:-1], bounds[1:], strict=True):
            sentence = [tensor[start:end].transpose(0, 1)[None] for tensor in (query, key, value)]
            ahead = torch.arange(end - start) - torch.arange(end - start)[:, None]  # of the key before the query
            seen = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
            if window_size is not None:
                seen &= (-window_size[0] <= ahead) & (ahead <= window_size[1])
            kept = {"attn_mask": seen, "scale": softmax_scale, "enable_gqa": True}
            parts.append(scaled_dot_product_attention(*sentence, **kept)[0].transpose(0, 1))
        return torch.cat(parts)

    def options(is_causal, softmax_scale, sliding_window, **others) -> dict:  # as transformers gives them to the kernel
        window = {} if sliding_window is None else {"window_size": (sliding_window - 1, sliding_window - 1)}
        return {"causal": is_causal, "softmax_scale": softmax_scale, **window}

    kernels = ((None, varlen, None, None, None), (options, None))
    monkeypatch.setattr(modeling_flash_attention_utils, "lazy_import_flash_attention", lambda *_, **__: kernels)
    packed_backbone.say_flash_computes_in_half.cache_clear()
    return calls


def with_flash(encoder):
    encoder.backbone.config._attn_implementation = "flash_attention_2"
    return encoder


NAMES = ["bert", "xlm-roberta", "modernbert", "gte", "qwen3", "mistral"]  # windows of 8 tokens


@pytest.mark.parametrize("name", each(NAMES))
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
    assert [record.module for record in caplog.records].count("packed_backbone") == 1
    assert np.abs(seen - expected).max() < 0.05 * np.abs(expected).max() + 0.02
    assert flash.backbone.dtype == torch.float32


def test_a_decoder_is_tried_out_without_flash_attention(kernel_calls, tmp_path):
    """Fails if a job with flash attention stops at loading: its kernel has no CPU version, and models start there."""
    folder = str(save_family("qwen3", tmp_path / "qwen3"))
    encoder = with_flash(SentenceEncoder.from_pretrained(folder, pooling="mean"))
    with pytest.raises(InputError, match="--pooling cls .*token sees no other"):
        check_architecture(encoder.backbone, encoder.tokenizer, "cls")
    assert encoder.backbone.config._attn_implementation == "flash_attention_2" and not kernel_calls
