"""The steps of towers that teach each other: their order, and what each of them reads."""

import json
from pathlib import Path

import pytest

from cosent.errors import InputError
from cosent.studies.teaching import DONE, Course, Step

BI, CROSS = "bi_encoder", "cross_encoder"
RECIPES = {BI: ("bi.yaml", "bi_taught.yaml"), CROSS: ("cross.yaml", "cross_taught.yaml")}


@pytest.fixture
def steps(tmp_path):
    """A function that lists steps as (name, {flag: its words})."""

    def listed(order=(BI, CROSS), rounds=1, seeds=(1,), given=(), ensemble=False, alone=False, with_labels=False):
        flags = {"num_train_epochs": 3.0}, {"num_train_epochs": 1.0}
        course = Course(
            "lcqmc", "data", "a" * 64, tmp_path, RECIPES, {BI: "mini", CROSS: "mini"}, flags, {"random": 5}, with_labels
        )
        found = course.steps(list(order), rounds, list(seeds), list(given), ensemble, alone)
        assert len({step.folder for step in found}) == len(found), "two steps would write one folder"
        return [(step.folder.name, flags_of(step.job, tmp_path)) for step in found]

    return listed


def flags_of(job: list[str], output: Path) -> dict[str, str]:
    """Flags of a command line, with places relative to the output."""
    given: dict[str, list[str]] = {}
    for word in job[1:]:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            given[name] = [value] * bool(equals)
        else:
            given[list(given)[-1]].append(word)
    return {name: " ".join(values).replace(f"{output}/", "") for name, values in given.items()}


def test_a_round(steps):
    """Fails if a student does not get the pairs made for it, labelled by its teacher, and then the labels."""
    found = steps()
    assert [name for name, _ in found] == [
        "bi_encoder-round_0-1",
        "cross_encoder-round_1-pairs-1", "cross_encoder-round_1-taught-1", "cross_encoder-round_1-1",
        "bi_encoder-round_1-pairs-1", "bi_encoder-round_1-taught-1", "bi_encoder-round_1-1",
    ]  # fmt: skip
    bi, pairs, taught, cross, pairs_2, taught_2, bi_2 = (flags for _, flags in found)
    assert (bi["--config"], bi["--corpus"], bi["--num_train_epochs"]) == ("bi.yaml", "lcqmc", "3.0")
    assert "--model_name_or_path" not in bi | taught | taught_2, "their recipes say where they start"
    first = "bi_encoder-round_0-1"
    assert (pairs["--model"], pairs["--teacher"], pairs["--random"]) == (first, first, "5")
    assert taught["--corpus"] == pairs["--output"] == "cross_encoder-round_1-pairs-1/lcqmc_taught"
    assert (taught["--config"], taught["--eval_corpora"]) == ("cross_taught.yaml", "lcqmc")
    assert taught["--num_train_epochs"] == "1.0" and taught["--resume_from_checkpoint"] == "auto"
    assert (cross["--config"], cross["--corpus"]) == ("cross.yaml", "lcqmc") and "--eval_corpora" not in cross
    assert cross["--model_name_or_path"] == "cross_encoder-round_1-taught-1"
    assert (pairs_2["--model"], pairs_2["--teacher"]) == (first, "cross_encoder-round_1-1")
    assert taught_2["--config"] == "bi_taught.yaml" and bi_2["--model_name_or_path"] == "bi_encoder-round_1-taught-1"


def test_the_second_round_reads_the_first(steps):
    """Fails if a round is taught by the models of the start again."""
    found = dict(steps(rounds=2, seeds=[1, 2]))
    pairs = found["cross_encoder-round_2-pairs-2"]
    assert pairs["--model"] == pairs["--teacher"] == "bi_encoder-round_1-2"
    assert found["bi_encoder-round_2-pairs-2"]["--teacher"] == "cross_encoder-round_2-2"
    assert len(found) == 2 * (1 + 2 * 6)


def test_the_cross_encoder_may_begin(steps):
    """Fails if there is no bi-encoder to find neighbours, or a given teacher is trained again."""
    found = steps(order=(CROSS, BI))
    assert [name for name, _ in found][:2] == ["cross_encoder-round_0-1", "bi_encoder-round_1-pairs-1"]
    assert (found[1][1]["--model"], found[1][1]["--teacher"]) == ("mini", "cross_encoder-round_0-1")
    given = steps(order=(BI, CROSS), given=["runs/bi", "runs/bi_2"])
    assert given[0][0] == "cross_encoder-round_1-pairs-1" and given[0][1]["--model"] == "runs/bi"
    assert given[0][1]["--teacher"] == "runs/bi runs/bi_2"


def test_an_ensemble_labels_once_for_all(steps):
    """Fails if the seeds of an ensemble do not read the same labels, by all teachers."""
    found = dict(steps(seeds=[1, 2], ensemble=True))
    assert [name for name in found if "pairs" in name] == [
        "cross_encoder-round_1-pairs-1",
        "bi_encoder-round_1-pairs-1",
    ]
    assert found["cross_encoder-round_1-pairs-1"]["--teacher"] == "bi_encoder-round_0-1 bi_encoder-round_0-2"
    corpora = {found[f"cross_encoder-round_1-taught-{seed}"]["--corpus"] for seed in (1, 2)}
    assert corpora == {found["cross_encoder-round_1-pairs-1"]["--output"]}


def test_labels_with_the_pairs_and_a_student_alone(steps):
    """Fails if labels are left out of what a student learns, or nothing shows what a teacher adds."""
    found = dict(steps(with_labels=True, alone=True))
    assert found["cross_encoder-round_1-1"]["--corpus"] == "cross_encoder-round_1-pairs-1/lcqmc_taught lcqmc"
    assert found["cross_encoder-round_1-1"]["--config"] == "cross_taught.yaml"
    alone = found["cross_encoder-round_0-1"]
    assert (alone["--config"], alone["--corpus"]) == ("cross.yaml", "lcqmc") and "--model_name_or_path" not in alone


def test_a_step_with_other_flags_or_data_is_refused(tmp_path):
    """Fails if models of two settings, or of two versions of a corpus, end up in one table."""
    step = Step(tmp_path, ["cosent.train", "--scale=1"], "a1")
    assert not step.finished
    (tmp_path / DONE).write_text(json.dumps(step.note))
    assert step.finished
    with pytest.raises(InputError, match=r": --scale=1, now --scale=2"):
        _ = Step(tmp_path, ["cosent.train", "--scale=2"], "a1").finished
    with pytest.raises(InputError, match=r": MANIFEST.json=a1, now MANIFEST.json=b2"):
        _ = Step(tmp_path, ["cosent.train", "--scale=1"], "b2").finished
