"""Results read back as they were written, and those of earlier versions still do."""

import json
from pathlib import Path

import pytest

from cosent.errors import InputError
from cosent.run_record import CorpusRecord, Environment, Footprint
from cosent.studies.method import Method
from cosent.studies.results import Result, Speed

ROOT = Path(__file__).parents[2]
KEPT = sorted(path for path in (ROOT / "results").glob("*/*.json") if path.parent.name != "audit")


def result(file: Path, **changes) -> Result:
    fields = {
        "recipe": {"loss": "cosent", "learning_rate": 1e-3},
        "environment": Environment({"torch": "2"}, "c" * 40, "CPU", 2),
        "train_seconds": 12.0,
        "processes": 1,
        "footprint": Footprint(100, 10, 0.5, 300.0),
        "corpora": {"stsb": CorpusRecord("data/stsb", "a" * 64)},
        "train_pairs": 50,
        "before": {"stsb": {"test": {"spearman": 0.25}}},
        "after": {"stsb": {"test": {"spearman": 0.5}}},
        "method": Method("cross_encoder", "cosent", "scale_5", names_tower=True),
        "trained_on": "stsb",
        "seed": 1,
        "flags": {"scale": 5.0},
        "speed": Speed(10.0, 20.0),
        "validation_curve": [(1.0, 0.3), (2.0, 0.5)],
    }
    return Result(file=file, **fields | changes)


def test_a_result_reads_back_as_it_was(tmp_path):
    """Fails if a field of a result is lost, or comes back as another type than it went."""
    kept = result(tmp_path / "x.json")
    kept.save()
    assert Result.read(tmp_path / "x.json") == kept


@pytest.mark.parametrize("file", KEPT, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_kept_results_are_read_with_their_numbers(file):
    """Fails if a result of this repository cannot be read any more, or is read as something else."""
    raw, read = json.loads(file.read_text(encoding="utf-8")), Result.read(file)
    again = json.loads(json.dumps(read.to_json()))
    if "no_packing" in raw["recipe"]:  # its name until 2026-11-22
        raw["recipe"]["packing"] = not raw["recipe"].pop("no_packing")
    assert {key for key in raw if again[key] != raw[key]} <= {"study"}, "written again, its numbers are others"
    names = ["-".join([*read.method.parts, *corpus, str(read.seed)]) for corpus in ([read.trained_on], [])]
    assert file.stem in names, "results of a study name their corpus, those of cosent teach have one"
    assert read.method.tower == raw["recipe"]["tower"] and read.flags == raw["study"]["flags"]
    assert all(read.test(corpus) == raw["after"][corpus]["test"]["spearman"] for corpus in read.tested_on)


def test_results_are_found():
    """Fails if the test above runs on nothing."""
    assert len(KEPT) >= 44


@pytest.mark.parametrize("missing", ["study", "commit", "after", "recipe"])
def test_a_result_that_cannot_be_read_says_so(tmp_path, missing):
    """Fails if a file of an earlier version ends in a traceback, or in a report without its numbers."""
    raw = json.loads(KEPT[0].read_text(encoding="utf-8"))
    del raw[missing]
    (tmp_path / "x.json").write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(InputError, match=r"x.json is not the result of a run that this version .*Another version"):
        Result.read(tmp_path / "x.json")


def test_names_of_earlier_results():
    """Fails if results from before towers were recorded change their row, their order or their file name."""
    for name, tower, parts in [
        ("ce_mini", "cross_encoder", ("ce_mini", "", False)),
        ("cosent_mini LoRA-8", "bi_encoder", ("cosent_mini", "LoRA-8", False)),
        ("bi_encoder cosent_mini", "bi_encoder", ("cosent_mini", "", True)),
        ("bi_encoder cosent_mini scale_5", "bi_encoder", ("cosent_mini", "scale_5", True)),
    ]:
        method = Method.from_name(name, tower)
        assert (method.recipe, method.variant, method.names_tower) == parts and method.name == name


def test_the_first_epoch_is_a_whole_one(tmp_path):
    """Fails if an evaluation in the midst of an epoch passes for its end."""
    run = result(tmp_path / "x.json", validation_curve=[(0.5, 0.3), (1.0, 0.4), (2.0, 0.6)])
    assert run.first_epoch == 0.4 and run.epochs_to_90 == 2.0
    assert result(tmp_path / "x.json", validation_curve=[]).epochs_to_90 is None


def test_what_was_not_measured_is_none(tmp_path):
    """Fails if NaN, or a split that was never scored, goes into a mean."""
    run = result(tmp_path / "x.json", after={"stsb": {"test": {"spearman": float("nan")}}, "nli": {"validation": {}}})
    assert run.test("stsb") is None and run.test("nli") is None and run.test("lcqmc") is None
    assert run.test("stsb", moment="before") == 0.25 and run.tested_on == ["stsb"]
