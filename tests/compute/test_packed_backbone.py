"""A packed backbone: every pooling, segments, dropout, flash attention, and what is padded instead."""

import logging

import pytest
import torch
from transformers import AutoConfig, AutoModel

from cosent.compute import packed_backbone
from cosent.compute.packed_backbone import packed_forward, packing_obstacle
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.pooling import POOLINGS, Pooling

LENGTHS = [70, 3, 9, 1, 30, 12, 5, 22, 9, 17, 64, 2]


def make_backbone(kind="bert", attention="sdpa", dropout=0.0):
    config = AutoConfig.for_model(
        kind, vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=90, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    backbone = AutoModel.from_config(config, attn_implementation=attention).eval()
    for name, parameter in backbone.named_parameters():
        if parameter.dim() > 1 and "embed_positions" not in name:  # RoFormer's are sinusoids
            torch.nn.init.normal_(parameter, std=0.1)
    backbone.pooler = None
    return backbone


def make_inputs(lengths=LENGTHS, pad_token_id=0, seed=1):
    lengths = torch.tensor(lengths)
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(5, 50, mask.shape, generator=torch.Generator().manual_seed(seed))
    return {"input_ids": torch.where(mask.bool(), ids, pad_token_id), "attention_mask": mask}


def make_encoder(backbone, pooling="mean"):
    return SentenceEncoder(backbone, None, Pooling(pooling, backbone.config.hidden_size))


def tokens_computed(backbone, run):
    """Runs `run()` and counts the tokens that went through the backbone."""
    counts = []
    hook = backbone.register_forward_pre_hook(
        lambda module, args, kwargs: counts.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    result = run()
    hook.remove()
    return result, sum(counts)


def both_ways(encoder, inputs):
    """Embeddings packed and padded; fails where nothing was packed."""
    encoder.packing = False
    padded, all_tokens = tokens_computed(encoder.backbone, lambda: encoder(**inputs))
    encoder.packing = True
    packed, tokens = tokens_computed(encoder.backbone, lambda: encoder(**inputs))
    assert tokens < 0.9 * all_tokens, "the batch was not packed: nothing was compared"
    return packed, padded


@pytest.mark.parametrize("pooling", [*POOLINGS, "mini"])
def test_packed_embeddings_are_the_padded_ones(pooling):
    """Fails if a pooling reads a place of packed rows that is not of its sentence, or the default encoder does."""
    shipped = pooling == "mini"
    encoder = SentenceEncoder.from_pretrained("mini").eval() if shipped else make_encoder(make_backbone(), pooling)
    with torch.no_grad():
        packed, padded = both_ways(encoder, make_inputs())
    torch.testing.assert_close(packed, padded, atol=2e-6, rtol=0)
    assert padded.std(dim=0).min() > 1e-3, "all sentences are alike: nothing was compared"


def test_free_places_of_a_row_do_not_look_like_padding():
    """Fails if transformers warns in every distillation that a mask is missing, which packed rows do without."""
    backbone, seen = make_backbone("roformer", "eager"), []
    backbone.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    packed_forward(backbone, make_inputs(pad_token_id=backbone.config.pad_token_id))
    ((rows, mask),) = [(of["input_ids"], of.get("attention_mask")) for of in seen]
    assert mask is None and rows.numel() > sum(LENGTHS), "a mask, or no free place: nothing was looked at"
    assert backbone.config.pad_token_id not in rows


def test_dropout_has_the_same_distribution():
    """Fails if dropout is off in packed rows, or drops more or less than in a padded batch."""
    encoder = make_encoder(make_backbone(dropout=0.2)).train()
    inputs = make_inputs([20, 5, 9, 3, 12, 4])
    torch.manual_seed(0)
    with torch.no_grad():
        draws = [torch.stack(way) for way in zip(*(both_ways(encoder, inputs) for _ in range(400)), strict=True)]
    packed, padded = draws  # each (draws, sentences, hidden)
    assert packed.std(dim=0).min() > 1e-2, "dropout is off"
    error = ((packed.var(dim=0) + padded.var(dim=0)) / 400).sqrt()
    z = (packed.mean(dim=0) - padded.mean(dim=0)) / error  # 192 standard normals, were they independent
    assert z.abs().max() < 5 and 0.7 < z.square().mean() < 1.4
    assert abs((packed.std(dim=0) / padded.std(dim=0)).mean() - 1) < 0.03


@pytest.mark.parametrize("lengths", [[1], [9], [90], [12, 12, 12], [64, 63, 64]])
def test_batches_without_padding_stay_as_they_are(lengths):
    """Fails if sorted batches, as in encode, pay for packing that saves nothing."""
    encoder = make_encoder(make_backbone())
    inputs = make_inputs(lengths)
    with torch.no_grad():
        embeddings, tokens = tokens_computed(encoder.backbone, lambda: encoder(**inputs))
        encoder.packing = False
        torch.testing.assert_close(embeddings, encoder(**inputs), atol=0, rtol=0)
    assert tokens == inputs["input_ids"].numel()


def test_an_unverified_backbone_is_padded_and_says_so_once(caplog):
    """Fails if packing is guessed to be exact, or dropped without a word."""
    packed_backbone.warn_of_padding.cache_clear()
    encoder = make_encoder(make_backbone())
    encoder.backbone.config.model_type = "novel"
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for _ in range(2):
            _, tokens = tokens_computed(encoder.backbone, lambda: encoder(**make_inputs()))
    assert tokens == len(LENGTHS) * 70
    assert caplog.text.count("novel") == 1
    config = make_backbone().config
    assert packing_obstacle(config) is None
    config._attn_implementation = "flex_attention"  # whose masks are not ours
    assert "flex_attention" in packing_obstacle(config)


def test_flash_attention_gets_one_row_and_the_bounds_of_its_sentences():
    """Fails if the variable-length kernel would mix sentences; the kernel itself needs a GPU."""

    class Flash(torch.nn.Module):
        device, dtype = torch.device("cpu"), torch.bfloat16

        def forward(self, input_ids, **arguments):
            self.seen = {"input_ids": input_ids, **arguments}
            return type("Output", (), {"last_hidden_state": input_ids[..., None].float()})

    backbone = Flash()
    backbone.config = make_backbone().config
    backbone.config._attn_implementation = "flash_attention_2"
    inputs = {
        "input_ids": torch.tensor([[5, 6, 0], [7, 8, 9], [4, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]),
    }
    hidden = packed_forward(backbone, inputs)
    assert "attention_mask" not in backbone.seen
    assert backbone.seen["input_ids"].tolist() == [[7, 8, 9, 5, 6, 4]]
    assert backbone.seen["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0]]
    for side in ("q", "k"):
        assert backbone.seen[f"cu_seq_lens_{side}"].tolist() == [0, 3, 5, 6]
        assert backbone.seen[f"cu_seq_lens_{side}"].dtype == torch.int32
        assert backbone.seen[f"max_length_{side}"] == 3
    assert (hidden[..., 0].long() * inputs["attention_mask"]).tolist() == inputs["input_ids"].tolist()
