"""Packed rows: every token stands once, rows are cheap, bad batches are refused, and what is padded instead."""

import logging
import threading

import numpy as np
import pytest
import torch
from transformers import BertConfig, Qwen3Config
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from cosent.compute.packing import (
    WIDEST_ROW,
    cheapest_plan,
    pack,
    packed_forward,
    packing_obstacle,
    plain_forward,
    plan_rows,
    sentences_apart,
    token_counts,
    unpack,
    worthwhile_plan,
)
from cosent.errors import InputError, once
from cosent.models.loading import freeze_sines
from tests.support.families import LONGEST, random_family

LENGTHS = [LONGEST, 3, 9, 1, 30, 12, 5, 22, 9, 17, 54, 2]


def make_backbone(kind="bert"):
    backbone = random_family(kind).eval()
    backbone.pooler = None
    freeze_sines(backbone)
    return backbone


def make_inputs(lengths=LENGTHS):
    lengths = torch.tensor(lengths)
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(5, 50, mask.shape, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids * mask, "attention_mask": mask}


def tokens_computed(backbone, run):
    """Runs `run()` and counts the tokens that went through the backbone."""
    counts = []
    hook = backbone.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    result = run()
    hook.remove()
    return result, sum(counts)


def test_free_places_of_a_row_do_not_look_like_padding():
    """Fails if transformers warns in every distillation that a mask is missing, which packed rows do without."""
    backbone, seen = make_backbone("roformer"), []
    backbone.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    packed_forward(backbone, make_inputs())
    ((rows, mask),) = [(of["input_ids"], of.get("attention_mask")) for of in seen]
    assert mask is None and rows.numel() > sum(LENGTHS), "a mask, or no free place: nothing was looked at"
    assert backbone.config.pad_token_id not in rows


@pytest.mark.parametrize("lengths", [[1], [9], [LONGEST], [12, 12, 12], [40, 39, 40]])
def test_batches_without_padding_stay_as_they_are(lengths):
    """Fails if sorted batches, as in encode, pay for packing that saves nothing."""
    backbone, inputs = make_backbone(), make_inputs(lengths)
    with torch.no_grad():
        states, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, inputs))
        torch.testing.assert_close(states, plain_forward(backbone, inputs), atol=0, rtol=0)
    assert tokens == inputs["input_ids"].numel()


def test_an_unverified_backbone_is_padded_and_says_so_once(caplog):
    """Fails if packing is guessed to be exact, or dropped without a word."""
    once.cache_clear()
    backbone = make_backbone()
    assert packing_obstacle(backbone.config) is None
    backbone.config._attn_implementation = "flex_attention"  # whose masks are not ours
    assert "flex_attention" in packing_obstacle(backbone.config)
    backbone.config._attn_implementation, backbone.config.model_type = "sdpa", "novel"
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for _ in range(2):
            _, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, make_inputs()))
    assert tokens == len(LENGTHS) * LONGEST and caplog.text.count("novel") == 1


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


def test_widths_of_rows():
    """Fails if sentences a little over half a row leave the other half empty, one of 8,000 tokens asks for a mask of
    16,000 x 16,000, or left padding, an empty sentence or one longer than a row gives wrong numbers in silence."""
    plan = cheapest_plan(np.full(12, 34), hidden_size=768, max_width=512)
    assert plan.width in (40, 72) and plan.rows * plan.width <= 1.1 * 12 * 34
    assert cheapest_plan(np.array([60, 10]), hidden_size=768, max_width=62).width <= 62
    assert worthwhile_plan(np.array([10, 10, 10, 9]), 10, 768, 512) is None
    lengths = np.array([8000, 30, 20, 700, 5])
    assert cheapest_plan(lengths, 256, 8192).width == 8000
    assert cheapest_plan(np.array([700, 690, 30, 20]), 256, 8192).width <= WIDEST_ROW
    assert cheapest_plan(np.array([500, 490, 30, 20]), 256, 8192).width <= WIDEST_ROW
    with pytest.raises(InputError, match="padding_side"):
        token_counts(torch.tensor([[0, 1, 1]]))
    with pytest.raises(InputError, match="0 to 3"):
        plan_rows(np.array([3, 0]), 64)
    with pytest.raises(InputError, match="1 to 8 .*3 to 9"):
        plan_rows(np.array([3, 9]), 8)


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
        bidirectional, causal = (draw(*kind)[0, 0].int().tolist() for kind in kinds)
        others = []
        thread = threading.Thread(target=lambda: others.append(draw(*kinds[0])))
        thread.start()
        thread.join()
    assert bidirectional == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert causal == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert others == [None] and all(draw(*kind) is None for kind in kinds)
