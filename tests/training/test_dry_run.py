"""What `--dry_run` says, against the run that it announces."""

import json
import re
import shlex
import sys

import pytest

from cosent.data.corpus import leaks, load_corpus
from cosent.errors import InputError
from cosent.run import read_record
from cosent.training import plan as dry_run
from cosent.training.arguments import PairTrainingArguments
from tests.launching import run_here

DRY = ("--dry_run", "true")


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": [*pairs, ("好" * 60, "坏", 0.0)], "validation": pairs[:32], "test": pairs[:10]})


def everything(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def plan_of(capsys) -> dict[str, list[str]]:
    """Lines of a plan by their first word."""
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines()[1:]:
        found.setdefault(line[:10].strip(), []).append(line[10:])
    return found


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--tower", "cross_encoder", "--use_peft", "true", "--lora_target_modules", "query", "value"),
        ("--cached_batch_size", "32", "--cached_part_size", "auto", "--optim", "sgd"),
    ],
)
def test_the_plan_is_what_the_run_does(train, corpus, tmp_path, capsys, flags):
    """Fails if a plan announces other steps, weights or memory than those of the run, or leaves anything behind."""
    before = everything(tmp_path)
    assert train(corpus, *flags, *DRY) == tmp_path / "run"
    assert everything(tmp_path) == before and not (tmp_path / "run").exists()
    plan = plan_of(capsys)
    folder = train(corpus, *flags)
    record = read_record(folder)
    steps = json.loads((folder / "checkpoint-10/trainer_state.json").read_text())["max_steps"] if not flags else None
    assert plan["steps"][0].startswith("6 = 2 epochs of 3" if "--cached_batch_size" in flags else "10 = 2 epochs of 5")
    assert steps in (10, None) and max(entry["step"] for entry in record.history) == int(plan["steps"][0].split()[0])
    size = record.footprint
    assert plan["weights"] == [
        f"{size.trainable_parameters:,} of {size.parameters:,} are trained ({size.trained_share:.1%})"
    ]
    optimizer = float(re.search(r"optimizer ([\d.]+)", plan["memory"][0])[1])
    assert optimizer == pytest.approx(size.optimizer_mib, abs=0.06)
    assert "not counted: activations" in plan["memory"][0]
    cut = "0 of 65 pairs cut at 64" if "--tower" in flags else "1 of 130 sentences cut at 32"
    assert plan["read"][0].startswith("65 pairs, ") and plan["read"][0].endswith(cut)
    if "--use_peft" in flags:
        assert plan["LoRA"] == ["2 x query, 2 x value"]
    if "--cached_batch_size" in flags:
        assert "batches of 32 pairs (1 device, in parts of at most 32)" in plan["steps"][0]


def test_what_gives_reason_to_doubt(train, corpus, make_corpus, pairs, capsys, caplog):
    """Fails if leaks, labels of one kind or accumulation are noticed only after the run."""
    clean = make_corpus({"train": [("甲", "乙", 1.0), ("丙", "丁", 0.0)], "test": [("乙", "甲", 1.0)]}, name="clean")
    manifest = json.loads((clean / "MANIFEST.json").read_text()) | {"warnings": ["a partial corpus"]}
    (clean / "MANIFEST.json").write_text(json.dumps(manifest))
    train((corpus, clean), "--gradient_accumulation_steps", "2", *DRY)
    plan = plan_of(capsys)
    assert plan["warning"] == [
        "clean test has labels of one kind only: nothing can be ranked there",
        "32 pairs of made_up validation are among the training pairs: its figures flatter",
        "10 pairs of made_up test are among the training pairs: its figures flatter",
        "1 pairs of clean test are among the training pairs: its figures flatter",
        "clean: a partial corpus",
    ]
    assert plan["corpus"][1] == "clean (binary): train 2 (1 x 0, 1 x 1), test 1 (1 x 1)"
    assert "those of different batches are never compared" in caplog.text


def test_errors_are_those_of_the_run(train, corpus, tmp_path):
    """Fails if a plan looks fine and its run then stops at once."""
    for flags, words in {
        ("--lora_target_modules", "nothing", "--use_peft", "true"): "no such linear layer",
        ("--loss", "mse"): "is for the cross_encoder",
        ("--cached_batch_size", "40"): "a multiple of 16",
    }.items():
        with pytest.raises(InputError, match=words):
            train(corpus, *flags, *DRY)
    checkpoint = train(corpus, "--save_total_limit", "2") / "checkpoint-5"
    with pytest.raises(InputError, match="already holds a model"):
        train(corpus, *DRY)
    before = everything(tmp_path)
    with pytest.raises(InputError, match="started with other settings: data_seed 42, not 3; seed"):
        train(corpus, "--resume_from_checkpoint", str(checkpoint), "--seed", "3", *DRY, output="other")
    train(corpus, "--resume_from_checkpoint", str(checkpoint), *DRY, output="other")
    assert everything(tmp_path) == before


def test_a_student_is_planned_without_its_teacher_reading(corpus, tiny_model, tiny_student, tmp_path, capsys):
    """Fails if planning to distil takes the hours in which a teacher embeds the text."""
    flags = ("--model_name_or_path", str(tiny_student), "--corpus", str(corpus), "--output_dir", str(tmp_path / "run"))
    flags += ("--teacher", str(tiny_model), "--teacher_cache", str(tmp_path / "cache"), "--use_cpu", "true", *DRY)
    run_here("distill", *flags)
    plan = plan_of(capsys)
    assert plan["read"][0].startswith("65 pairs") and "-m cosent.distill" in plan["launch"][0]
    assert not (tmp_path / "cache").exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["--dry_run"], ["--dry-run", "true"], ["--dry_run=yes"], ["--dry-run", "1"]])
def test_the_command_of_the_real_run(tmp_path, words, monkeypatch):
    """Fails if the announced command is a dry run again, lost a flag, or would start another number of processes."""
    args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no")
    given = ["--config", "a.yaml", *words, "--corpus", "my pairs", "nli"]
    line = dry_run.launch_line(given, args)
    assert line == (
        "accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.train "
        "--config a.yaml --corpus 'my pairs' nli"
    )
    assert shlex.split(line)[-2] == "my pairs" and sys.argv
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert "recipes/accelerate/fsdp.yaml --num_processes 1 -m cosent.train" in dry_run.launch_line(given, args)


def test_memory_of_several_devices(tiny_model, tmp_path, monkeypatch):
    """Fails if what a strategy shards or doubles is counted as for one device."""
    from types import SimpleNamespace

    import torch

    model = torch.nn.Linear(2**18, 4, bias=False)  # 4 MiB
    total = {}
    for name, environment in {"one": None, "ddp": None, "fsdp": "FSDP", "zero": "DEEPSPEED"}.items():
        with monkeypatch.context() as patch:
            if environment:
                patch.setenv(f"ACCELERATE_USE_{environment}", "true")
            args = SimpleNamespace(optim="adamw_torch", world_size=1 if name == "one" else 2)
            total[name] = float(dry_run.memory(model, args).split()[0])
    assert total == {"one": 16, "ddp": 20, "fsdp": 8, "zero": 4 + 2 + 2 + 4}
    args = SimpleNamespace(optim="adafactor", world_size=1)
    assert "optimizer not known for adafactor" in dry_run.memory(model, args)


def test_leaks_of_either_order(make_corpus):
    """Fails if a mirrored pair, or one of another corpus, is not found, or equal sentences alone count."""
    first = make_corpus({"train": [("a", "b", 1.0), ("c", "d", 0.0)], "test": [("a", "d", 1.0)]}, name="first")
    second = make_corpus({"test": [("b", "a", 1.0), ("c", "d", 1.0), ("a", "c", 0.0)]}, name="second")
    one, two = (load_corpus(str(folder)) for folder in (first, second))
    assert leaks([one], [one, two]) == {"second test": 2}
