"""What may be sharded and how, without launching anything."""

from types import SimpleNamespace

import pytest
import torch
import transformers
import yaml
from torch import nn
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from cosent.errors import InputError
from cosent.training.sharding import FSDP_CONFIG, check_strategy, layer_classes
from tests.launching import ROOT


@pytest.fixture
def launched_by(monkeypatch):
    return lambda strategy: monkeypatch.setenv(f"ACCELERATE_USE_{strategy.upper()}", "true")


def fsdp(**changes) -> SimpleNamespace:
    """An accelerator with the settings of the recipe."""
    plugin = {"fsdp_version": 2, "state_dict_type": SimpleNamespace(name="FULL_STATE_DICT")}
    plugin |= {"auto_wrap_policy": transformer_auto_wrap_policy, "cpu_ram_efficient_loading": False}
    return SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(**(plugin | changes))))


def zero(stage: int) -> SimpleNamespace:
    return SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=stage)))


def test_what_is_refused_under_a_strategy(launched_by):
    """Fails if ZeRO-3 trains until the first evaluation, or half-precision gradients vanish unscaled."""
    check_strategy(SimpleNamespace(), "fp16")  # on one GPU
    launched_by("deepspeed")
    check_strategy(zero(2), "bf16")
    for stage, precision, words in ((3, "bf16", "zero_stage 3"), (2, "fp16", "fp16 under deepspeed")):
        with pytest.raises(InputError, match=words):
            check_strategy(zero(stage), precision)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fsdp_version": 1}, "fsdp_version 1"),
        ({"state_dict_type": SimpleNamespace(name="SHARDED_STATE_DICT")}, "SHARDED_STATE_DICT"),
        ({"auto_wrap_policy": None}, "NO_WRAP"),
        ({"cpu_ram_efficient_loading": True}, "fsdp_cpu_ram_efficient_loading True"),
    ],
)
def test_other_settings_of_fsdp_are_refused(launched_by, change, words):
    """Fails if a configuration of one's own ends in a stack trace after the first epoch, or trains random weights."""
    launched_by("fsdp")
    check_strategy(fsdp(), "bf16")
    with pytest.raises(InputError, match=words):
        check_strategy(fsdp(**change), "bf16")


def test_the_recipe_has_the_settings_that_are_checked():
    """Fails if the shipped configuration is refused."""
    recipe = yaml.safe_load((ROOT / "recipes/accelerate/fsdp.yaml").read_text(encoding="utf-8"))["fsdp_config"]
    assert {key: recipe[key] for key in FSDP_CONFIG} == FSDP_CONFIG


@pytest.mark.parametrize(
    ("family", "layer"),
    [("Bert", "BertLayer"), ("ModernBert", "ModernBertEncoderLayer"), ("RoFormer", "RoFormerLayer")],
)
def test_layers_are_found(family, layer):
    """Fails if FSDP gathers all of an architecture at once, since transformers does not name its layers."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    config = getattr(transformers, f"{family}Config")(vocab_size=99, pad_token_id=0, **sizes)
    with torch.device("meta"):
        model = nn.ModuleDict({"backbone": getattr(transformers, f"{family}Model")(config)})
    assert layer_classes(model) == [layer]
