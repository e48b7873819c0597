"""The plan of `--dry_run`, against the run that it announces."""

import json

import pytest

from cosent.data.corpus import leaks, load_corpus
from cosent.errors import InputError
from cosent.record import read_record
from tests.support.launching import run_here

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
        ("--tower", "cross_encoder", "--use_peft", "true", "--lora_target_modules", "query", "value"),
        ("--cached_batch_size", "32", "--cached_part_size", "auto"),
    ],
)
def test_the_plan_is_what_the_run_does(train, corpus, tmp_path, capsys, flags):
    """Fails if a plan announces other steps or weights than those of the run, or leaves anything behind."""
    before = everything(tmp_path)
    assert train(corpus, *flags, *DRY) == tmp_path / "run"
    assert everything(tmp_path) == before and not (tmp_path / "run").exists()
    plan, record = plan_of(capsys), read_record(train(corpus, *flags))
    cross = "--tower" in flags
    assert plan["steps"][0].startswith("10 = 2 epochs of 5" if cross else "6 = 2 epochs of 3")
    assert max(entry["step"] for entry in record.history) == int(plan["steps"][0].split()[0])
    size = record.footprint
    expected = f"{size.trainable_parameters:,} of {size.parameters:,} are trained ({size.trained_share:.1%})"
    assert plan["weights"] == [expected]
    assert plan["read"][0].startswith("65 pairs, ")
    assert plan["read"][0].endswith(" 0 of 65 pairs truncated" if cross else " 1 of 130 sentences truncated")
    if cross:
        assert plan["LoRA"] == ["2 x query, 2 x value"]
    else:
        assert "batches of 32 pairs in parts of at most 32" in plan["steps"][0]


def test_what_gives_reason_to_doubt(train, corpus, make_corpus, capsys, caplog):
    """Fails if leaks, labels of one kind or accumulation are noticed only after the run."""
    clean = make_corpus({"train": [("甲", "乙", 1.0), ("丙", "丁", 0.0)], "test": [("乙", "甲", 1.0)]}, name="clean")
    manifest = json.loads((clean / "MANIFEST.json").read_text()) | {"warnings": ["a partial corpus"]}
    (clean / "MANIFEST.json").write_text(json.dumps(manifest))
    train((corpus, clean), "--gradient_accumulation_steps", "2", *DRY)
    plan = plan_of(capsys)
    assert [line[:20] for line in plan["warning"]] == [
        "clean: a partial cor",
        "clean test has label",
        "32 pairs of made_up ",
        "10 pairs of made_up ",
        "1 pairs of clean tes",
    ]
    assert plan["corpus"][1] == "clean (binary): train 2 (1 x 0, 1 x 1), test 1 (1 x 1)"
    assert "--gradient_accumulation_steps 2" in caplog.text


def test_errors_are_those_of_the_run(train, corpus, tmp_path):
    """Fails if a plan looks fine and its run then stops at once."""
    with pytest.raises(InputError, match="lora_target_modules|no such linear layer"):
        train(corpus, "--lora_target_modules", "nothing", "--use_peft", "true", *DRY)
    checkpoint = train(corpus, "--save_total_limit", "2") / "checkpoint-5"
    with pytest.raises(InputError, match="already holds a model"):
        train(corpus, *DRY)
    before = everything(tmp_path)
    with pytest.raises(InputError, match="data_seed 42, not 3; seed"):
        train(corpus, "--resume_from_checkpoint", str(checkpoint), "--seed", "3", *DRY, output="other")
    train(corpus, "--resume_from_checkpoint", str(checkpoint), *DRY, output="other")
    assert everything(tmp_path) == before


def test_a_student_is_planned_without_its_teacher_reading(
    corpus, tiny_model, tiny_student, tmp_path, capsys, monkeypatch
):
    """Fails if planning to distil takes the hours in which a teacher embeds the text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ("--model_name_or_path", str(tiny_student), "--corpus", str(corpus), "--output_dir", str(tmp_path / "run"))
    flags += ("--teacher", str(tiny_model), "--use_cpu", "true", *DRY)
    run_here("distill", *flags)
    assert plan_of(capsys)["read"][0].startswith("65 pairs")
    assert not (tmp_path / "cache/cosent/model_outputs").exists() and not (tmp_path / "run").exists()


def test_leaks_of_either_order(make_corpus):
    """Fails if a mirrored pair, or one of another corpus, is not found, or equal sentences alone count."""
    first = make_corpus({"train": [("a", "b", 1.0), ("c", "d", 0.0)], "test": [("a", "d", 1.0)]}, name="first")
    second = make_corpus({"test": [("b", "a", 1.0), ("c", "d", 1.0), ("a", "c", 0.0)]}, name="second")
    one, two = (load_corpus(str(folder)) for folder in (first, second))
    assert leaks([one], [one, two]) == {"second test": 2}
