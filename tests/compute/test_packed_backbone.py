"""A packed backbone: dropout, batches without padding, and what is padded instead."""

import logging

import pytest
import torch

from cosent.compute import packed_backbone
from cosent.compute.packed_backbone import packed_forward, packing_obstacle, plain_forward
from cosent.models.loading import freeze_sines
from tests.families import LONGEST, random_family

LENGTHS = [LONGEST, 3, 9, 1, 30, 12, 5, 22, 9, 17, 54, 2]


def make_backbone(kind="bert", dropout=0.0):
    backbone = random_family(kind).eval()
    backbone.pooler = None
    freeze_sines(backbone)
    for module in backbone.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
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


def test_dropout_has_the_same_distribution():
    """Fails if dropout is off in packed rows, or drops more or less than in a padded batch."""
    backbone, inputs = make_backbone(dropout=0.2).train(), make_inputs([20, 5, 9, 3, 12, 4])
    torch.manual_seed(0)
    with torch.no_grad():
        packed, padded = (
            torch.stack([run(backbone, inputs)[:, 0] for _ in range(400)]) for run in (packed_forward, plain_forward)
        )  # each (draws, sentences, hidden)
    assert packed.std(dim=0).min() > 1e-2, "dropout is off"
    error = ((packed.var(dim=0) + padded.var(dim=0)) / 400).sqrt()
    z = (packed.mean(dim=0) - padded.mean(dim=0)) / error  # 192 standard normals, were they independent
    assert z.abs().max() < 5 and 0.7 < z.square().mean() < 1.4
    assert abs((packed.std(dim=0) / padded.std(dim=0)).mean() - 1) < 0.03


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
    packed_backbone.warn_of_padding.cache_clear()
    backbone = make_backbone()
    assert packing_obstacle(backbone.config) is None
    backbone.config._attn_implementation = "flex_attention"  # whose masks are not ours
    assert "flex_attention" in packing_obstacle(backbone.config)
    backbone.config._attn_implementation, backbone.config.model_type = "sdpa", "novel"
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for _ in range(2):
            _, tokens = tokens_computed(backbone, lambda: packed_forward(backbone, make_inputs()))
    assert tokens == len(LENGTHS) * LONGEST and caplog.text.count("novel") == 1
