"""Arguments of training on machines of other kinds, and the device of a job that serves."""

import logging

import pytest
import torch
from transformers import Trainer

from cosent.compute.onednn import choose_device, has_bfloat16
from cosent.distill import StudentTrainingArguments
from cosent.errors import InputError
from cosent.pretrain import PretrainingArguments
from cosent.training.arguments import PairTrainingArguments


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
    """Fails if a small encoder is trained at the rate of BERT-base where no recipe names one."""
    caplog.set_level("INFO")
    for width, lora, rate in ((32, False, 5e-4), (32, True, 2e-3), (768, False, 2e-5), (768, True, 2e-4)):
        args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
        args.choose_learning_rate(width, lora)
        assert args.learning_rate == rate and f"--learning_rate {rate:g}" in caplog.text


def test_steps_alone_set_a_length(tmp_path):
    """Fails if --max_steps needs a number of epochs, too."""
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
