"""Packed rows give every listed architecture the numbers and gradients of a padded batch, however it attends."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from cosent.compute.onednn import trainable_onednn_linears
from cosent.compute.packing import POSITIONS, packed_forward, plain_forward
from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.loading import freeze_sines
from cosent.models.lora import add_adapter, lora_config
from cosent.models.modules import Pooling
from tests.compute.test_packed_backbone import LENGTHS, tokens_computed
from tests.support.families import FAMILIES, LETTERS, LONGEST, REPRESENTATIVES, each, random_family

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


def backbone_of(name: str, attention: str | None = None, device: str = "cpu") -> torch.nn.Module:
    backbone = random_family(name, attn_implementation=attention).to(device).eval()
    backbone.pooler = None
    freeze_sines(backbone)
    return backbone


def batch_of(backbone: torch.nn.Module) -> dict[str, torch.Tensor]:
    config, lengths = backbone.config, torch.tensor(LENGTHS)
    mask = (torch.arange(LONGEST) < lengths[:, None]).long()
    generator = torch.Generator().manual_seed(1)
    ids = config.vocab_size - 1 - torch.randint(len(LETTERS), mask.shape, generator=generator)  # no special tokens
    ids = torch.where(mask.bool(), ids, config.pad_token_id or 0)
    return {"input_ids": ids.to(backbone.device), "attention_mask": mask.to(backbone.device)}


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
    return [vectors.detach()], gradients(backbone)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


def towers(name: str) -> tuple[BiEncoder, dict[str, torch.Tensor]]:
    """A bi-encoder with mean pooling, and a batch of six pairs."""
    backbone = backbone_of(name)
    encoder = SentenceEncoder(backbone, None, Pooling("mean", backbone.config.hidden_size))
    return BiEncoder(encoder), {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch_of(backbone).items()}


def learn(model: BiEncoder, batch: dict[str, torch.Tensor], packing: bool) -> list[torch.Tensor]:
    """The gradients of one step of CoSENT."""
    model.encoder.packing = packing
    model.zero_grad()
    cosent_loss(model(**batch)["scores"], torch.arange(6.0)).backward()
    return gradients(model)


def test_every_listed_architecture_is_tried_here():
    """Fails if an architecture is declared exact and no test compares it, or a kind of positions has no example in
    `make test`."""
    assert set(POSITIONS) == {KINDS[name] for name in PACKED} and len(PACKED) > 20
    assert set(POSITIONS.values()) == {POSITIONS[name] for name in REPRESENTATIVES if name in POSITIONS}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "attention"), ATTENTIONS)
def test_vectors_and_gradients_are_the_padded_ones(name, attention, device):
    """Fails if positions, mask, local window or reading back are wrong for an architecture, by more than rounding."""
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


@pytest.mark.parametrize("name", each(PACKED))
def test_every_way_computes_the_same(name):
    """Fails if checkpointing, oneDNN, half precision or LoRA compute other numbers on packed rows."""
    model, batch = towers(name)
    encoder, sentences = model.encoder, {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
    expected = learn(model, batch, packing=False)
    if encoder.backbone.supports_gradient_checkpointing:
        model.train()  # without which nothing is recomputed; there is no dropout
        encoder.activation_checkpointing_enable()
    with trainable_onednn_linears():
        assert difference(learn(model, batch, packing=True), expected) < 5e-6
    with torch.no_grad():
        encoder.eval().packing = False
        vectors = encoder(**sentences)
        encoder.packing = True
        half = encoder.bfloat16()(**sentences)
    assert half.dtype == torch.bfloat16 and cosine_similarity(half.float(), vectors).min() > 0.99

    model, _ = towers(name)
    add_adapter(model, model.encoder.backbone, lora_config(4, 8.0, 0.0, ["all-linear"]), seed=1)
    with torch.no_grad():  # fresh adapters do nothing
        for weight in model.parameters():
            if weight.requires_grad:
                weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(3))
    expected = learn(model, batch, packing=False)
    assert difference(learn(model, batch, packing=True), expected) < 5e-6
    assert 0 < len(expected) < len(list(model.parameters()))
