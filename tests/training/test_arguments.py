"""Arguments of training on machines of other kinds, the device of a serving job, and what may be sharded and how."""

import logging
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import Trainer

from cosent.compute.onednn import choose_device, has_bfloat16
from cosent.distill import StudentTrainingArguments
from cosent.errors import InputError
from cosent.training.arguments import PairTrainingArguments
from cosent.training.sharding import check_strategy, layer_classes
from lab.pretrain import PretrainingArguments


@pytest.mark.parametrize("kind", [PairTrainingArguments, StudentTrainingArguments, PretrainingArguments])
def test_several_gpus_are_never_used_by_accident(kind, tmp_path, monkeypatch, caplog):
    """Fails if plain python on a host with four GPUs trains on batches four times as large."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)  # TrainingArguments has the CPU as its device
    with caplog.at_level(logging.WARNING):
        args = kind(output_dir=str(tmp_path), max_steps=1)
    assert args.n_gpu == 1 and args.train_batch_size == args.per_device_train_batch_size
    model = torch.nn.Linear(1, 1)
    assert Trainer(model=model, args=args, eval_dataset=[0])._wrap_model(model) is model, "DataParallel"
    assert "sees 4 GPUs" in caplog.text and "--launch ddp" in caplog.text


def test_the_default_learning_rate_is_that_of_the_encoder(tmp_path, caplog):
    """Fails if a small encoder is trained at the rate of BERT-base where no recipe names one, or --max_steps needs
    epochs."""
    caplog.set_level("INFO")
    for width, lora, rate in ((32, False, 5e-4), (32, True, 2e-3), (768, False, 2e-5), (768, True, 2e-4)):
        args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
        args.choose_learning_rate(width, lora)
        assert args.learning_rate == rate and f"--learning_rate {rate:g}" in caplog.text
    PairTrainingArguments(output_dir=str(tmp_path), num_train_epochs=0, max_steps=1)


def test_the_device_is_one_that_the_job_can_use(monkeypatch):
    """If this fails, --int8 cannot be used where there is a GPU, or a GPU is left alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = ((None, False), (None, True), ("cpu", False), ("cuda:1", False))
    assert [choose_device(*one) for one in asked] == ["cuda", "cpu", "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None) == choose_device("cpu", int8=True) == "cpu"
    for refused, message in ((("gpu",), "cuda:N"), (("cuda", True), "--int8"), (("cuda:0",), "no CUDA device")):
        with pytest.raises(InputError, match=message):
            choose_device(*refused)


@pytest.mark.parametrize(
    ("features", "fast"),
    [
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "aarch64"}, True),  # PyTorch does not say
    ],
)
def test_bfloat16_on_a_cpu_without_it_is_told(monkeypatch, caplog, tmp_path, features, fast):
    """If this fails, a run takes 14 times as long as it must, and nothing says why."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert has_bfloat16() is fast
    for bf16 in (True, False):
        caplog.clear()
        PairTrainingArguments(output_dir=str(tmp_path), bf16=bf16, use_cpu=True)
        assert ("--bf16 false" in caplog.text) is (bf16 and not fast)


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
