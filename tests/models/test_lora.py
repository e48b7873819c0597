"""LoRA for both towers: what is trained, what is saved, and that everything reloads to the same scores."""

from functools import partial

import numpy as np
import pytest
import torch
from peft import PeftModel
from sentence_transformers import SentenceTransformer

from cosent.errors import InputError
from cosent.models import load_model, lora
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from tests.support.launching import WITHIN_EPOCHS

FIRST = ["我喜欢北京", "怎么还款", "红色的苹果"]


@pytest.fixture
def train(train, made_up):
    """As the fixture of all tests, with LoRA: `train(*flags, output="run")`."""
    return partial(train, made_up, "--use_peft", "true", "--learning_rate", "1e-2")


def bi_encoder(tiny_model):
    model = BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls"))
    config = lora.lora_config(2, 4, 0.0, ["query", "value"])
    return model, lora.add_adapter(model, model.encoder.backbone, config, seed=1)


def test_what_is_trained_and_what_the_seed_draws(tiny_model):
    """Fails if frozen weights move, a fresh pooling stays random, two runs of one seed differ, or an adapter shifts the
    random numbers that follow."""
    torch.manual_seed(5)
    first, adapter = bi_encoder(tiny_model)
    following = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(following, torch.rand(1))
    again, _ = bi_encoder(tiny_model)
    for (name, one), two in zip(first.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two), name
    lora_weights = [name for name in adapter.trained if "lora" in name]
    assert len(lora_weights) == 2 * 2 * 2  # layers x targets x (A, B)
    assert all(".query." in name or ".value." in name for name in lora_weights)
    assert {name.split(".")[-2] for name in adapter.trained if name not in lora_weights} == {"linear"}


def test_a_bi_encoder_ends_as_a_plain_model_with_its_adapter_beside_it(lora_run, tiny_model):
    """Fails if serving tools cannot load a LoRA run's folder, or the adapter is not the trained one."""
    folder, footprint = lora_run.folder, lora_run.record.footprint
    assert 0 < footprint.trainable_parameters < 0.2 * footprint.parameters
    assert "trained " in lora_run.printed and "peak memory " in lora_run.printed
    ours = SentenceEncoder.from_pretrained(str(folder))
    vectors = ours.encode(FIRST)
    np.testing.assert_allclose(SentenceTransformer(str(folder), device="cpu").encode(FIRST), vectors, atol=1e-5)
    start = SentenceEncoder.from_pretrained(str(tiny_model))
    assert np.abs(vectors - start.encode(FIRST)).max() > 0.01, "nothing was learnt"
    ours.backbone = PeftModel.from_pretrained(start.backbone, str(folder / "adapter")).eval()
    ours.packing = False
    np.testing.assert_allclose(ours.encode(FIRST), vectors, atol=1e-4)
    for load in (load_model, CrossEncoder.from_pretrained):
        with pytest.raises(InputError, match=f"one folder up, {folder.resolve()}"):
            load(str(folder / "adapter"))


def test_resuming_is_exact(train, start):
    """Fails if a checkpoint of a LoRA run lacks a trained weight (of Dense layers, too), or merges the adapter in."""
    flags = ("--model_name_or_path", str(start), *WITHIN_EPOCHS)
    whole = train(*flags, output="whole")
    resumed = train(*flags, "--resume_from_checkpoint", str(whole / "checkpoint-6"), output="resumed")
    for name in ("model.safetensors", "adapter/trained.safetensors", "adapter/adapter_model.safetensors"):
        assert (whole / "checkpoint-8" / name).read_bytes() == (resumed / "checkpoint-8" / name).read_bytes(), name
    first = (whole / "checkpoint-6/model.safetensors").read_bytes()
    assert first != (whole / "checkpoint-8/model.safetensors").read_bytes()
    with pytest.raises(InputError, match="started with other settings: lora_r 8, not 3"):
        train(*flags, "--lora_r", "3", "--resume_from_checkpoint", str(whole / "checkpoint-6"), output="other")
