"""Packed rows: the numbers and gradients of a padded batch in every architecture; widths of rows, and bad batches."""

import logging
import threading

import numpy as np
import pytest
import torch
from transformers import BertConfig, Qwen3Config
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from cosent.compute.packing import (
    POSITIONS,
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
from tests.support.families import FAMILIES, LETTERS, LONGEST, REPRESENTATIVES, random_family

LENGTHS = [LONGEST, 3, 9, 1, 30, 12, 5, 22, 9, 17, 54, 2]
KINDS = {name: family.model_type or name for name, family in FAMILIES.items()}
PACKED = [name for name, kind in KINDS.items() if kind in POSITIONS]
EAGER_ONLY = ("megatron-bert", "mpnet", "roformer")
ATTENTIONS = [
    pytest.param(name, attention, marks=() if name in REPRESENTATIVES else pytest.mark.matrix)
    for name in PACKED
    for attention in ("sdpa", "eager")[name in EAGER_ONLY :]
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
    ),
]


def backbone_of(name: str = "bert", attention: str | None = None, device: str = "cpu") -> torch.nn.Module:
    backbone = random_family(name, attn_implementation=attention).to(device).eval()
    backbone.pooler = None
    freeze_sines(backbone)
    return backbone


def batch_of(backbone: torch.nn.Module, lengths: list[int] = LENGTHS) -> dict[str, torch.Tensor]:
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    generator = torch.Generator().manual_seed(1)
    config = backbone.config
    ids = config.vocab_size - 1 - torch.randint(len(LETTERS), mask.shape, generator=generator)  # no special tokens
    ids = torch.where(mask.bool(), ids, config.pad_token_id or 0)
    return {"input_ids": ids.to(backbone.device), "attention_mask": mask.to(backbone.device)}


def tokens_computed(backbone, run):
    """Runs `run()` and counts the tokens that went through the backbone."""
    counts = []
    hook = backbone.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    result = run()
    hook.remove()
    return result, sum(counts)


def difference(seen: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Largest difference relative to the largest expected value."""
    scale = max(float(tensor.abs().max()) for tensor in expected)
    pairs = zip(seen, expected, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs) / scale


def compute(run, backbone: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[list[torch.Tensor], ...]:
    """Token vectors of `run(backbone, batch)`, 0 for padding, and the gradients of a random sum of them."""
    real = batch["attention_mask"][..., None]  # (sentences, tokens, 1)
    target = torch.randn(*real.shape[:2], backbone.config.hidden_size, generator=torch.Generator().manual_seed(2))
    backbone.zero_grad()
    vectors = run(backbone, batch) * real
    (vectors * target.to(vectors)).sum().backward()
    return [vectors.detach()], [weight.grad.clone() for weight in backbone.parameters() if weight.grad is not None]


def test_every_listed_architecture_is_tried_here():
    """Fails if an architecture is declared exact and no test compares it, or a kind of positions has no example in
    `make test`."""
    assert set(POSITIONS) == {KINDS[name] for name in PACKED} and len(PACKED) > 20
    assert set(POSITIONS.values()) == {POSITIONS[name] for name in REPRESENTATIVES if name in POSITIONS}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "attention"), ATTENTIONS)
def test_vectors_and_gradients_are_the_padded_ones(name, attention, device):
    """Fails if positions, mask, local window or reading back are wrong for an architecture, by more than rounding, or
    if a layer that runs again in the backward pass sees the other sentences of its row."""
    backbone = backbone_of(name, attention, device)
    assert backbone.config._attn_implementation == attention
    batch = batch_of(backbone)
    exact = 1e-6 if name in ("gemma3_text", "roformer") else 1e-13  # parts of these two always compute in float32
    limits = {torch.float32: 2e-6}
    if attention == "sdpa" or name in EAGER_ONLY:  # elsewhere eager attention makes NaN of padding in float64
        limits[torch.float64] = exact
    for dtype, limit in limits.items():
        backbone = backbone.to(dtype)
        vectors, grads = compute(packed_forward, backbone, batch)
        expected, expected_grads = compute(plain_forward, backbone, batch)
        assert difference(vectors, expected) < limit
        assert difference(grads, expected_grads) < limit
        assert len(grads) > 10 and expected[0].std(dim=(0, 1)).min() > 1e-2, "nothing was compared"
    _, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, batch))
    assert tokens < 0.5 * batch["input_ids"].numel(), "the batch was not packed"
    if backbone.supports_gradient_checkpointing:
        backbone.train().activation_checkpointing_enable()  # there is no dropout
        assert difference(compute(packed_forward, backbone, batch)[1], expected_grads) < limit


def test_free_places_of_a_row_do_not_look_like_padding():
    """Fails if transformers warns in every distillation that a mask is missing, which packed rows do without."""
    backbone, seen = backbone_of("roformer"), []
    backbone.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    packed_forward(backbone, batch_of(backbone))
    ((rows, mask),) = [(of["input_ids"], of.get("attention_mask")) for of in seen]
    assert mask is None and rows.numel() > sum(LENGTHS), "a mask, or no free place: nothing was looked at"
    assert backbone.config.pad_token_id not in rows


@pytest.mark.parametrize("lengths", [[1], [9], [LONGEST], [12, 12, 12], [40, 39, 40]])
def test_batches_without_padding_stay_as_they_are(lengths):
    """Fails if sorted batches, as in encode, pay for packing that saves nothing."""
    backbone = backbone_of()
    inputs = batch_of(backbone, lengths)
    with torch.no_grad():
        states, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, inputs))
        torch.testing.assert_close(states, plain_forward(backbone, inputs), atol=0, rtol=0)
    assert tokens == inputs["input_ids"].numel()


def test_an_unverified_backbone_is_padded_and_says_so_once(caplog):
    """Fails if packing is guessed to be exact, or dropped without a word."""
    once.cache_clear()
    backbone = backbone_of()
    assert packing_obstacle(backbone.config) is None
    backbone.config._attn_implementation = "flex_attention"  # whose masks are not ours
    assert "flex_attention" in packing_obstacle(backbone.config)
    backbone.config._attn_implementation, backbone.config.model_type = "sdpa", "novel"
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for _ in range(2):
            _, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, batch_of(backbone)))
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
