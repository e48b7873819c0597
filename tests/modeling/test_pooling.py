"""Poolings against values on paper; padding never enters one."""

import math

import pytest
import torch
from sentence_transformers.sentence_transformer import modules

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.pooling import MODE_KEYS, POOLINGS, Pooling

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("mode", [*POOLINGS, "lasttoken+cls"])
def test_padding_never_enters_a_pool(mode, left):
    """Fails if a sentence's vector depends on what else is in its batch (bojone/CoSENT#2: mean over padding)."""
    pooling = Pooling(mode, 8)
    tokens, padding = torch.randn(1, 3, 8), torch.full((1, 2, 8), 1e4)
    padded = torch.cat([padding, tokens] if left else [tokens, padding], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1]] if left else [[1, 1, 1, 0, 0]])
    alone = pooling.pool(tokens, torch.ones(1, 3, dtype=torch.long))
    torch.testing.assert_close(pooling.pool(padded, mask), alone)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("prompt", [0, 2])
@pytest.mark.parametrize("mode", [*MODE_KEYS, "mean+cls+weightedmean"])
def test_every_pool_is_that_of_sentence_transformers(mode, prompt, left):
    """Fails if a folder of sentence-transformers means another vector here, also where prompts are not pooled."""
    theirs = modules.Pooling(8, mode.split("+"), include_prompt=not prompt)
    tokens, lengths = torch.randn(4, 7, 8, dtype=torch.float64), torch.tensor([7, 3, 5, 4])
    mask = (torch.arange(7) < lengths[:, None]).long()
    mask = mask.flip(1) if left else mask
    features = {"token_embeddings": tokens, "attention_mask": mask, "prompt_length": prompt}
    expected = theirs(features)["sentence_embedding"]
    for skip in (prompt, torch.full((4,), prompt)):
        torch.testing.assert_close(Pooling(mode, 8).pool(tokens, mask, skip), expected, rtol=0, atol=1e-6)


def test_pools_on_paper():
    """Fails if a pool computes something else than its name: tokens (1, 4), (3, 0) and one padding token."""
    tokens = torch.tensor([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert Pooling("cls", 2).pool(tokens, mask).tolist() == [[1.0, 4.0]]
    assert Pooling("mean", 2).pool(tokens, mask).tolist() == [[2.0, 2.0]]
    assert Pooling("max", 2).pool(tokens, mask).tolist() == [[3.0, 4.0]]
    assert Pooling("lasttoken", 2).pool(tokens, mask).tolist() == [[3.0, 0.0]]
    assert Pooling("lasttoken+cls", 2).pool(tokens, mask).tolist() == [[3.0, 0.0, 1.0, 4.0]]
    root = Pooling("mean_sqrt_len_tokens", 2).pool(tokens, mask)
    torch.testing.assert_close(root, torch.tensor([[4.0, 4.0]]) / math.sqrt(2))
    weighted = Pooling("weightedmean", 2).pool(tokens, mask)  # weights 1/3 and 2/3
    torch.testing.assert_close(weighted, torch.tensor([[7 / 3, 4 / 3]]))
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
    assert torch.equal(first.after_pooling[0].linear.weight, second.after_pooling[0].linear.weight)
    assert not torch.equal(first.after_pooling[0].linear.weight, other.after_pooling[0].linear.weight)


def test_what_is_refused():
    """Fails if a misspelt pooling is taken for another, or sentences that flash attention reads in one row are pooled
    to a single vector."""
    for mode in ("median", "mean+first_last_mean", "cls+", "MEAN"):
        with pytest.raises(InputError, match=r"pooling must be one of .*got"):
            Pooling(mode, 8)
    with pytest.raises(ValueError, match=r"unpad_inputs = False"):
        Pooling("attention", 8)({"token_embeddings": torch.zeros(1, 5, 8)})
