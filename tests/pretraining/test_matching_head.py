"""The attention head that looks for the same token in the other sentence."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from cosent.encoders import resolve
from cosent.modeling.loading import load_tokenizer
from cosent.pretraining.matching_head import add_matching_head, discriminant
from cosent.pretraining.model import fresh_model, initial_model

LINES = ["怎么还款才好", "如何还款", "我想买一辆红色的车", "今天天气很好", "你喜欢北京吗", "北京的天气怎么样"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve("mini"))


@pytest.fixture(scope="module")
def ids(tokenizer):
    return np.concatenate(tokenizer(LINES, add_special_tokens=False)["input_ids"])


def without_first_head(name: str = "mini"):
    """A model whose head 0 in layer 0 attends to all alike and adds nothing; the shipped one matches already."""
    model = initial_model(name).eval()
    attention = model.base_model.encoder.layer[0].attention
    rows = slice(0, attention.self.attention_head_size)
    with torch.no_grad():
        for weights in (attention.self.query.weight[rows], attention.self.query.bias[rows]):
            weights.zero_()
        attention.output.dense.weight[:, rows] = 0
    return model


def shares(model, tokenizer) -> tuple[float, float]:
    """Attention of head 0 in layer 0: of 还款 to itself in the other sentence, and of 才好 to its own place."""
    model.set_attn_implementation("eager")
    pair = tokenizer("怎么还款才好", "如何还款", return_tensors="pt")  # 还款 at 3, 4 and again at 10, 11
    with torch.no_grad():
        attention = model.base_model(**pair, output_attentions=True).attentions[0][0, 0]
    across = [attention[here, there].item() for here, there in ((3, 10), (4, 11), (10, 3), (11, 4))]
    return min(across), min(attention[5, 5].item(), attention[6, 6].item())


@pytest.mark.parametrize("start", ["mini", "random"])
def test_a_token_finds_itself_in_the_other_sentence(tokenizer, ids, start):
    """Fails if a token attends to its own place although the other sentence has it, or to any place if it has not."""
    model = without_first_head() if start == "mini" else fresh_model("bert", len(tokenizer), layers=1, width=128)
    before, _ = shares(model.eval(), tokenizer)
    add_matching_head(model, ids)
    across, at_home = shares(model, tokenizer)
    assert before < 0.3 and across > 0.8 and at_home > 0.3


def test_lines_on_their_own_are_read_as_before(tokenizer, ids):
    """Fails if an encoder that has learnt to read single lines forgets it: sentence vectors must stay in place."""
    lines = tokenizer(LINES[:6], return_tensors="pt", padding=True)
    model = without_first_head()
    vectors = []
    for _ in range(2):
        with torch.no_grad():
            hidden = model.base_model(**lines).last_hidden_state
        vectors.append((hidden * lines["attention_mask"][..., None]).sum(1))
        add_matching_head(model, ids)
    assert cosine_similarity(*vectors).min() > 0.97 and not torch.equal(*vectors)


def test_a_direction_of_noise_is_not_a_discriminant():
    """Fails if tokens are told apart by a direction in which one token varies as much as two do."""
    generator = torch.Generator().manual_seed(0)
    signal, noise = torch.randn(500, 4, generator=generator), 0.01 * torch.randn(500, 4, generator=generator)
    noise[:, 2] *= 1000
    directions = discriminant(signal - signal.mean(0), noise, 3)
    assert directions[:, 2].abs().max() < 0.1 * directions.abs().max()
    assert ((signal - signal.mean(0)) @ directions.T).pow(2).mean(0).tolist() == pytest.approx([1, 1, 1], rel=1e-4)
