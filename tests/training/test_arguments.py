"""Arguments of training on machines of other kinds, the device of a serving job, and what may be sharded and how."""

import logging
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from transformers import Trainer, TrainingArguments

from cosent.errors import InputError
from cosent.flags import UNSUPPORTED, Parser
from cosent.jobs.arguments import choose_device
from cosent.record import lineage, trained_on_pairs
from cosent.training.arguments import TRAIN_ARGUMENTS, PairTrainingArguments
from cosent.training.global_batch import choose_learning_rate
from cosent.training.resumable import FSDP_SETTINGS, check_strategy, layer_classes
from tests.conftest import save_record

# Flags of transformers with another default here.
OTHER_DEFAULTS = """
    data_seed ddp_broadcast_buffers ddp_find_unused_parameters eval_strategy greater_is_better hub_private_repo
    learning_rate load_best_model_at_end logging_steps metric_for_best_model per_device_eval_batch_size save_strategy
    save_total_limit
"""


def test_every_flag_of_transformers_is_decided_on(tmp_path):
    """Fails if a new transformers brings a flag that nobody looked at, or one that does nothing is offered."""
    names = {field.name for field in fields(TrainingArguments) if field.init}
    parser, text = Parser(*TRAIN_ARGUMENTS), Parser(*TRAIN_ARGUMENTS, all_flags=True).format_help()
    offered = {name for name in names if f"--{name} " in text}
    assert names - offered == UNSUPPORTED and len(offered) == 81, "look at the new ones"
    for name in UNSUPPORTED:
        with pytest.raises(InputError, match=f"--{name}'.*(leave it out|--launch)"):
            parser.read([f"--{name}", "1"])
    ours, theirs = (kind(output_dir=str(tmp_path), use_cpu=True) for kind in (PairTrainingArguments, TrainingArguments))
    assert {name for name in offered if getattr(ours, name) != getattr(theirs, name)} == set(OTHER_DEFAULTS.split())
    with pytest.raises(InputError, match="neftune_noise_alpha"):
        PairTrainingArguments(output_dir=str(tmp_path), neftune_noise_alpha=5.0)
    with pytest.raises(InputError, match="^--output_dir"):
        PairTrainingArguments()


def test_several_gpus_are_never_used_by_accident(tmp_path, monkeypatch, caplog):
    """Fails if plain python on a host with four GPUs trains on batches four times as large."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)  # TrainingArguments has the CPU as its device
    with caplog.at_level(logging.WARNING):
        args = PairTrainingArguments(output_dir=str(tmp_path), max_steps=1)
    assert args.n_gpu == 1 and args.train_batch_size == args.per_device_train_batch_size
    model = torch.nn.Linear(1, 1)
    assert Trainer(model=model, args=args, eval_dataset=[0])._wrap_model(model) is model, "DataParallel"
    assert "sees 4 GPUs" in caplog.text and "--launch ddp" in caplog.text


def test_the_default_learning_rate_is_that_of_the_start(tmp_path, caplog):
    """Fails if an encoder of the user's is trained at the rate of a shipped one, or --max_steps needs epochs."""
    caplog.set_level("INFO")
    rates = {("", False): 5e-4, ("mini", False): 5e-4, ("similar", False): 1e-4, ("similar", True): 2e-3}
    rates |= {("mini", True): 2e-3, ("similar-lookup", False): 3e-3, ("a/b", False): 5e-5, ("a/b", True): 2e-4}
    for (name, lora), rate in rates.items():
        config = SimpleNamespace(name_or_path=name, model_type="lookup" if "lookup" in name else "bert")
        args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
        encoder = SimpleNamespace(backbone=SimpleNamespace(config=config), tower="bi_encoder")
        choose_learning_rate(args, encoder, lora)
        assert args.learning_rate == rate and f"--learning_rate {rate:g}" in caplog.text
    PairTrainingArguments(output_dir=str(tmp_path), num_train_epochs=0, max_steps=1)


def test_the_lineage_of_a_model_ends_where_it_was_pretrained(tmp_path):
    """Fails if a model counts as one of ours because a run of ours trained it, or a circle of runs never ends."""
    runs = {"first": "mini", "second": tmp_path / "first", "public": tmp_path / "no", "circle": tmp_path / "circle"}
    for name, start in runs.items():
        (tmp_path / name).mkdir()
        save_record(tmp_path / name, {}, recipe={"model_name_or_path": str(start)})
    lines = {str(tmp_path / name): length for name, length in zip(runs, (2, 3, 1, 1), strict=True)}
    lines |= {"mini": 1, "mini-roformer": 1, "similar": 2, "similar-writer": 2, "similar-lookup": 3, "": 0}
    assert {name: len(lineage(name)) for name in lines} == lines
    ours = [name for name in lines if name and lineage(name)[-1].pretraining is not None]
    assert set(lines) - set(ours) == {str(tmp_path / "public"), str(tmp_path / "circle"), ""}
    assert [name for name in ours if not trained_on_pairs(lineage(name))] == ["mini", "mini-roformer"]


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


@pytest.fixture
def launched_by(monkeypatch):
    return lambda strategy: monkeypatch.setenv(f"ACCELERATE_USE_{strategy.upper()}", "true")


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


def test_other_settings_of_fsdp_are_refused(launched_by, monkeypatch):
    """Fails if a configuration of one's own ends in a stack trace after the first epoch, or trains random weights."""
    launched_by("fsdp")
    for name, required in FSDP_SETTINGS.items():
        monkeypatch.setenv(name, required)
    check_strategy(SimpleNamespace(), "bf16")
    for name, required in FSDP_SETTINGS.items():
        monkeypatch.setenv(name, "other")
        with pytest.raises(InputError, match=f"{name.lower()} other"):
            check_strategy(SimpleNamespace(), "bf16")
        monkeypatch.setenv(name, required)


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
