"""Plans of packed rows: every token stands once, rows are cheap, bad batches are refused."""

import threading

import numpy as np
import pytest
import torch
from transformers import BertConfig, Qwen3Config
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from cosent.compute.packing import (
    WIDEST,
    cheapest_plan,
    pack,
    plan_rows,
    sentences_apart,
    token_counts,
    unpack,
    worthwhile_plan,
)
from cosent.errors import InputError


@pytest.mark.parametrize("seed", range(5))
def test_every_token_stands_once_and_no_row_overflows(seed):
    """Fails if a sentence is lost, overlaps another or runs out of its row."""
    random = np.random.default_rng(seed)
    width = int(random.integers(1, 100))
    lengths = random.integers(1, width + 1, size=int(random.integers(1, 60)))
    mask = torch.arange(lengths.max()) < torch.from_numpy(lengths)[:, None]
    tokens = torch.arange(1, mask.numel() + 1).view_as(mask) * mask
    for plan in (plan_rows(lengths, width), cheapest_plan(lengths, 32, max_width=width)):
        taken = np.zeros((plan.rows, plan.width), dtype=int)
        for length, row, start in zip(lengths, plan.row, plan.start, strict=True):
            assert start + length <= plan.width
            taken[row, start : start + length] += 1
        assert taken.max() == 1 and taken.sum() == lengths.sum()
        packed = pack({"tokens": tokens}, plan, fill={"tokens": -100})
        placed = packed.tensors["tokens"]
        assert ((placed == -100) == (packed.segments == 0)).all()
        assert sorted(placed[placed > 0].tolist()) == sorted(tokens[tokens > 0].tolist())
        back = unpack(placed[..., None], packed.slots)[..., 0]
        assert torch.equal(back * mask, tokens)


def test_the_example_of_the_module_docstring():
    """Fails if what the documentation shows is not what is computed."""
    ids = torch.tensor([[7, 8, 9], [5, 6, 0], [3, 4, 0]])
    packed = pack({"input_ids": ids, "position_ids": torch.arange(3).expand(3, 3)}, plan_rows(np.array([3, 2, 2]), 4))
    assert packed.tensors["input_ids"].tolist() == [[7, 8, 9, 0], [5, 6, 3, 4]]
    assert packed.tensors["position_ids"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]
    assert packed.segments.tolist() == [[1, 1, 1, 0], [2, 2, 3, 3]]
    assert packed.slots.tolist() == [[0, 1, 2], [4, 5, 5], [6, 7, 7]]


def test_rows_are_wider_where_that_leaves_less_empty():
    """Fails if sentences a little over half a row each leave the other half empty."""
    plan = cheapest_plan(np.full(12, 34), hidden_size=768, max_width=512)
    assert plan.width in (40, 72) and plan.rows * plan.width <= 1.1 * 12 * 34
    assert cheapest_plan(np.array([60, 10]), hidden_size=768, max_width=62).width <= 62
    assert worthwhile_plan(np.array([10, 10, 10, 9]), 10, 768, 512) is None


def test_bad_batches_are_refused():
    """Fails if left padding, an empty sentence or one longer than a row gives wrong numbers in silence."""
    with pytest.raises(InputError, match="padding_side"):
        token_counts(torch.tensor([[0, 1, 1]]))
    with pytest.raises(InputError, match="0 to 3"):
        plan_rows(np.array([3, 0]), 64)
    with pytest.raises(InputError, match="1 to 8 .*3 to 9"):
        plan_rows(np.array([3, 9]), 8)


def test_long_sentences_make_no_wider_rows_than_they_need():
    """Fails if one sentence of 8,000 tokens asks for a mask of 16,000 x 16,000, or for a thousand plans."""
    lengths = np.array([8000, 30, 20, 700, 5])
    assert cheapest_plan(lengths, 256, 8192).width == 8000
    assert cheapest_plan(np.array([700, 690, 30, 20]), 256, 8192).width <= WIDEST
    assert cheapest_plan(np.array([500, 490, 30, 20]), 256, 8192).width <= WIDEST


def test_masks_of_packed_rows_and_of_other_models():
    """Fails if transformers leaves out the mask of a full row, or a model that is called outside, or by another thread,
    sees the sentences of a batch that is not its."""

    def draw(create, config) -> torch.Tensor | None:
        config._attn_implementation = "sdpa"
        states = torch.zeros(1, 4, 8)
        return create(config=config, inputs_embeds=states, attention_mask=None, past_key_values=None)

    kinds = ((create_bidirectional_mask, BertConfig()), (create_causal_mask, Qwen3Config()))
    with sentences_apart(torch.ones(1, 4, dtype=torch.long)):
        assert all(draw(*kind) is not None for kind in kinds)
    with sentences_apart(torch.tensor([[1, 1, 2, 0]])):
        own, causal = (draw(*kind)[0, 0].int().tolist() for kind in kinds)
        others = []
        thread = threading.Thread(target=lambda: others.append(draw(*kinds[0])))
        thread.start()
        thread.join()
    assert own == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert causal == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert others == [None] and all(draw(*kind) is None for kind in kinds)
