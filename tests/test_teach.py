"""Two towers teach each other: with real jobs on a tiny model, what is refused, and what a kill leaves."""

import json
from pathlib import Path

import pytest

from cosent import teach
from cosent.cli import parse
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.results import read_results
from cosent.training import launches
from tests.launching import later_wins, run_here

FRUIT = [f"{colour}色的{thing}" for colour in "红黄蓝绿白黑" for thing in ("香蕉", "汽车", "衣服", "房子")]
TRAIN = [(FRUIT[i], FRUIT[(3 * i + 1) % 24], float(i % 3 == 0)) for i in range(24)]
TRAINING = "num_train_epochs: 1\nper_device_train_batch_size: 16\nuse_cpu: true\n"


@pytest.fixture
def flags(tmp_path, make_corpus, pairs, tiny_model) -> list[str]:
    """Flags of a job on the tiny model; its recipes are files of the test."""
    corpus = make_corpus({"train": TRAIN, "validation": pairs[:16], "test": pairs[16:32]})
    words = ["--corpus", corpus, "--output", tmp_path / "out", "--seed", 1, "--set_labels", "scale=7"]
    for tower in ("bi_encoder", "cross_encoder"):
        recipe = tmp_path / f"{tower}.yaml"
        recipe.write_text(f"tower: {tower}\nmodel_name_or_path: {tiny_model}\n{TRAINING}")
        words += [f"--{tower}", recipe, recipe]
    cache = f"teacher_cache={tmp_path / 'cache'}"
    return [*map(str, words), "--set_pairs", "range_min=0", "range_max=3", "random=3", "device=cpu", cache]


@pytest.fixture
def here(monkeypatch):
    """Runs steps in this process, and lists the folders of those that ran."""
    ran = []

    def launch(job, folder, accelerate_config):
        ran.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        run_here(job[0].removeprefix("cosent."), *job[1:])
        return ""

    monkeypatch.setattr(launches, "launch", launch)
    return ran


def job(*words) -> int:
    return teach.main(*parse(later_wins(map(str, words)), *teach.ARGUMENTS))


@pytest.mark.slow
def test_a_round_of_real_jobs(flags, here, tmp_path):
    """Fails if a step does not take what the one before it made, is repeated, or is missing in the results."""
    assert job(*flags) == 0
    assert here == [
        "bi_encoder-round_0-1",
        "cross_encoder-round_1-pairs-1", "cross_encoder-round_1-taught-1", "cross_encoder-round_1-1",
        "bi_encoder-round_1-pairs-1", "bi_encoder-round_1-taught-1", "bi_encoder-round_1-1",
    ]  # fmt: skip
    out = tmp_path / "out"
    assert isinstance(load_model(str(out / "bi_encoder-round_1-1")), SentenceEncoder)
    # The bi-encoder of round 1 learnt the cross-encoder's logits.
    (made,) = (out / "bi_encoder-round_1-pairs-1").glob("*/MANIFEST.json")
    corpus = load_corpus(str(made.parent))
    rows, labels = corpus.split("train"), corpus.labels("train")
    teacher = load_model(str(out / "cross_encoder-round_1-1"))
    scores = teacher.similarity(rows["sentence1"][:], rows["sentence2"][:])
    assert len(labels) > 20 and abs(labels - scores).max() < 1e-4
    taught, after = (json.loads((out / name / "run.json").read_text())["recipe"]
                     for name in ("bi_encoder-round_1-taught-1", "bi_encoder-round_1-1"))  # fmt: skip
    assert (taught["corpus"], taught["scale"], after["scale"]) == ([str(made.parent)], None, 7.0)
    assert after["model_name_or_path"] == str(out / "bi_encoder-round_1-taught-1")
    study = read_results(out / "results")
    assert list(study.rows) == ["bi_encoder round_0", "cross_encoder round_1 taught", "cross_encoder round_1",
                                "bi_encoder round_1 taught", "bi_encoder round_1"]  # fmt: skip
    assert all(result.scores for result in study.results), "a report has no intervals"
    here.clear()
    assert job(*flags) == 0 and here == [], "finished steps were repeated"
    for name in ("cross_encoder-round_1-pairs-1", "bi_encoder-round_1-1"):
        (out / name / teach.DONE).unlink()  # killed between the end of the step and its note
    assert job(*flags) == 0 and here == ["cross_encoder-round_1-pairs-1", "bi_encoder-round_1-1"]
    with pytest.raises(InputError, match="teach.json has other flags or data"):
        job(*flags, "--set_labels", "scale=8")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--rounds", "-1"], "--rounds must not be negative"),
        (["--set_pairs", "range_min=3", "range_max=3"], "--range_max of at least 4"),
        (["--set_pairs", "rangemin=3"], "--set_pairs: unknown key 'rangemin'"),
        (["--set", "corpus=x"], "corpus is set"),
        (["--bi_encoder", "cross_encoder/cosent_mini", "taught_mini"], "--bi_encoder takes two recipes"),
    ],
)
def test_what_is_refused_before_anything_runs(flags, here, tmp_path, changed, words):
    """Fails if a wrong flag, or a recipe of the other tower, is found after hours of training."""
    with pytest.raises(InputError, match=words):
        job(*flags, *changed)
    assert not here and not list(tmp_path.glob("out/*-*"))


def test_the_second_round_reads_the_first(flags):
    """Fails if a round is taught by the models of the start again."""
    steps = {step.folder.name: step for step in teach.steps_of(*parse([*flags, "--rounds", "2"], *teach.ARGUMENTS))}
    assert len(steps) == 1 + 2 * 6
    words = steps["cross_encoder-round_2-pairs-1"].job
    names = [Path(word).name for word in words]
    assert "--model=" in " ".join(words) and names.count("bi_encoder-round_1-1") == 2
    words = " ".join(steps["bi_encoder-round_2-pairs-1"].job)
    assert "cross_encoder-round_2-1" in words and "bi_encoder-round_1-1" in words
