"""Arguments of training on machines of other kinds."""

import logging

import pytest
import torch

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
    assert "sees 4 GPUs" in caplog.text and "--launch ddp" in caplog.text


def test_the_default_learning_rate_is_that_of_the_encoder(tmp_path, caplog):
    """Fails if a small encoder is trained at the rate of BERT-base where no recipe names one."""
    caplog.set_level("INFO")
    for width, lora, rate in ((32, False, 5e-4), (32, True, 2e-3), (768, False, 2e-5), (768, True, 2e-4)):
        args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
        args.choose_learning_rate(width, lora)
        assert args.learning_rate == rate and f"--learning_rate {rate:g}" in caplog.text


@pytest.mark.parametrize("kind", [PairTrainingArguments, PretrainingArguments])
@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("gradient_accumulation_steps", 0, "--gradient_accumulation_steps .* 0"),
        ("deepspeed", "x.json", "--deepspeed .*--launch"),
        ("fsdp", "full_shard", "--fsdp .*--launch"),
    ],
)
def test_refused_before_trainer_sees_it(kind, flag, value, words, tmp_path):
    """Fails if a wrong value trains nothing, or ends in the traceback of a library that is not installed."""
    with pytest.raises(InputError, match=words):
        kind(output_dir=str(tmp_path), max_steps=1, **{flag: value})


def test_no_epochs_are_refused(tmp_path):
    """Fails if a run without a step ends as if it had trained; --max_steps alone sets the length."""
    with pytest.raises(InputError, match="--num_train_epochs .* got 0"):
        PairTrainingArguments(output_dir=str(tmp_path), num_train_epochs=0)
    PairTrainingArguments(output_dir=str(tmp_path), num_train_epochs=0, max_steps=1)
