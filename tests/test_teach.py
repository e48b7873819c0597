"""Two towers teach each other: with real jobs on a tiny model, what is refused, and what a kill leaves."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cosent import teach
from cosent.cli import parse
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.results import read_results
from cosent.training import launches
from tests.launching import ROOT, later_wins, run_here

FRUIT = [f"{colour}色的{thing}" for colour in "红黄蓝绿白黑" for thing in ("香蕉", "汽车", "衣服", "房子")]
TRAIN = [(FRUIT[i], FRUIT[(3 * i + 1) % 24], float(i % 3 == 0)) for i in range(24)]
TRAINING = "num_train_epochs: 1\nper_device_train_batch_size: 16\nuse_cpu: true\n"


@pytest.fixture
def flags(tmp_path, make_corpus, pairs, tiny_model) -> list[str]:
    """Flags of a job on the tiny model; its recipes are files of the test."""
    corpus = make_corpus({"train": TRAIN, "validation": pairs[:16], "test": pairs[16:32]})
    words = ["--corpus", corpus, "--output", tmp_path / "out", "--teacher_cache", tmp_path / "cache"]
    for tower, names in (
        ("bi_encoder", ("bi_recipe", "bi_taught")),
        ("cross_encoder", ("cross_recipe", "cross_taught")),
    ):
        recipe = tmp_path / f"{tower}.yaml"
        recipe.write_text(f"tower: {tower}\nmodel_name_or_path: {tiny_model}\n{TRAINING}")
        words += [word for name in names for word in (f"--{name}", recipe)]
    words += ["--range_min", 0, "--range_max", 3, "--random", 3, "--device", "cpu", "--seeds", 1]
    return [*map(str, words), "--accelerate_config", str(ROOT / "recipes/accelerate/cpu.yaml")]


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


def test_a_round_of_real_jobs(flags, here, tmp_path, capsys):
    """Fails if a step does not take what the one before it made, is repeated, or is missing in the table."""
    assert job(*flags) == 0
    assert here == [
        "bi_encoder-round_0-1",
        "cross_encoder-round_1-pairs-1", "cross_encoder-round_1-taught-1", "cross_encoder-round_1-1",
        "bi_encoder-round_1-pairs-1", "bi_encoder-round_1-taught-1", "bi_encoder-round_1-1",
    ]  # fmt: skip
    said = capsys.readouterr().out
    rows = [line.split("|")[1].strip() for line in said.splitlines() if "_encoder round" in line][1:]
    assert rows == ["bi_encoder round_0", "cross_encoder round_1 taught", "cross_encoder round_1",
                    "bi_encoder round_1 taught", "bi_encoder round_1"]  # fmt: skip
    out = tmp_path / "out"
    assert isinstance(load_model(str(out / "cross_encoder-round_1-1")), CrossEncoder)
    assert isinstance(load_model(str(out / "bi_encoder-round_1-1")), SentenceEncoder)
    # The bi-encoder of round 1 learnt the cross-encoder's logits.
    (made,) = (out / "bi_encoder-round_1-pairs-1").glob("*/MANIFEST.json")
    corpus = load_corpus(str(made.parent))
    rows, labels = corpus.split("train"), corpus.labels("train")
    teacher = load_model(str(out / "cross_encoder-round_1-1"))
    scores = teacher.similarity(rows["sentence1"][:], rows["sentence2"][:])
    assert len(labels) > 20 and abs(labels - scores).max() < 1e-4
    record = json.loads((out / "bi_encoder-round_1-taught-1/run.json").read_text())
    assert record["recipe"]["corpus"] == [str(made.parent)] and record["train_pairs"] == len(labels)
    assert all(result.scores for result in read_results(out / "results").results), "a report has no intervals"
    here.clear()
    assert job(*flags) == 0 and here == [], "finished steps were repeated"
    again = capsys.readouterr().out
    assert again.startswith("| made_up, Spearman x100 | validation | test |") and said.endswith(again)
    for name in ("cross_encoder-round_1-pairs-1", "bi_encoder-round_1-1"):
        (out / name / teach.DONE).unlink()  # killed between the end of the step and its note
    assert job(*flags) == 0 and here == ["cross_encoder-round_1-pairs-1", "bi_encoder-round_1-1"]
    with pytest.raises(InputError, match=": --random=3, now --random=4"):
        job(*flags, "--random", 4)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--rounds", "-1"], "--rounds must not be negative"),
        (["--range_min", "3"], "need a --range_max of at least 4, got 3"),
        (["--seeds", "1", "1"], "each seed once"),
        (["--ensemble"], "several for --ensemble"),
        (["--set", "corpus=x"], "corpus is set"),
        (["--set_taught", "batch=8"], "--set for taught: .*'batch'"),
    ],
)
def test_what_is_refused_before_anything_runs(flags, here, tmp_path, changed, words):
    """Fails if a wrong flag is found after hours of training."""
    with pytest.raises(InputError, match=words):
        job(*flags, *changed)
    assert not here and not (tmp_path / "out").exists()


def test_recipes_and_teachers_of_the_wrong_tower(flags, here, tiny_model, tmp_path):
    """Fails if a cross-encoder is trained where a bi-encoder is meant, or a student's tower is a matter of chance."""
    with pytest.raises(InputError, match="bi_encoder"):
        job(*flags, "--bi_taught", tmp_path / "cross_encoder.yaml")
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "cross")
    with pytest.raises(InputError, match="are of both towers"):
        job(*flags, "--teacher", tiny_model, tmp_path / "cross")
    assert not here


def test_a_given_cross_encoder_teaches_first(flags, here, tiny_model, tmp_path):
    """Fails if a teacher that is there is trained again, or its tower is guessed wrong."""
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "cross")
    words = ["--teacher", tmp_path / "cross", "--labels", "with", "--neighbours", 0]
    assert job(*flags, *words) == 0
    assert here == ["bi_encoder-round_1-pairs-1", "bi_encoder-round_1-1",
                    "cross_encoder-round_1-pairs-1", "cross_encoder-round_1-1"]  # fmt: skip
    record = json.loads((tmp_path / "out/bi_encoder-round_1-1/run.json").read_text())
    assert [Path(corpus).name for corpus in record["recipe"]["corpus"]] == ["made_up_taught", "made_up"]


@pytest.fixture
def steps(tmp_path, make_corpus, pairs, tiny_model):
    """A function that lists steps as {folder: {flag: its words}}."""
    corpus = make_corpus({"train": pairs}, name="lcqmc")
    (tmp_path / "models").mkdir()
    for name in ("bi", "bi_2"):
        (tmp_path / "models" / name).symlink_to(tiny_model)

    def listed(*words) -> dict[str, dict[str, str]]:
        given = ["--corpus", "lcqmc", "--data_dir", str(corpus.parent), "--output", str(tmp_path), "--seeds", "1"]
        given += ["--range_min", "0", "--random", "5", "--set_labels", "num_train_epochs=7"]
        found = teach.steps_of(*parse(later_wins([*given, *map(str, words)]), *teach.ARGUMENTS))
        assert len({step.folder for step in found}) == len(found), "two steps would write one folder"
        return {step.folder.name: flags_of(step.job, tmp_path) for step in found}

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
    bi, pairs, taught, cross, pairs_2, taught_2, bi_2 = steps().values()
    assert (bi["--config"], bi["--corpus"]) == ("recipes/bi_encoder/cosent_mini.yaml", "lcqmc")
    assert bi["--num_train_epochs"] == "7.0" and "--num_train_epochs" not in taught
    assert "--model_name_or_path" not in bi | taught | taught_2, "their recipes say where they start"
    first = "bi_encoder-round_0-1"
    assert (pairs["--model"], pairs["--teacher"], pairs["--random"]) == (first, first, "5")
    assert taught["--corpus"] == pairs["--output"] == "cross_encoder-round_1-pairs-1/lcqmc_taught"
    assert (taught["--config"], taught["--eval_corpora"]) == ("recipes/cross_encoder/taught_mini.yaml", "lcqmc")
    assert taught["--resume_from_checkpoint"] == "auto" and "--eval_corpora" not in cross
    assert (cross["--config"], cross["--corpus"]) == ("recipes/cross_encoder/cosent_mini.yaml", "lcqmc")
    assert cross["--model_name_or_path"] == "cross_encoder-round_1-taught-1"
    assert (pairs_2["--model"], pairs_2["--teacher"]) == (first, "cross_encoder-round_1-1")
    assert bi_2["--model_name_or_path"] == "bi_encoder-round_1-taught-1"


def test_the_second_round_reads_the_first(steps):
    """Fails if a round is taught by the models of the start again."""
    found = steps("--rounds", 2, "--seeds", 1, 2)
    pairs = found["cross_encoder-round_2-pairs-2"]
    assert pairs["--model"] == pairs["--teacher"] == "bi_encoder-round_1-2"
    assert found["bi_encoder-round_2-pairs-2"]["--teacher"] == "cross_encoder-round_2-2"
    assert len(found) == 2 * (1 + 2 * 6)


def test_the_cross_encoder_may_begin(steps, tmp_path):
    """Fails if there is no bi-encoder to find neighbours, or a given teacher is trained again."""
    (first, _), (second, mining), *_ = steps("--start", "cross_encoder").items()
    assert (first, second) == ("cross_encoder-round_0-1", "bi_encoder-round_1-pairs-1")
    assert (mining["--model"], mining["--teacher"]) == ("mini", "cross_encoder-round_0-1")
    name, flags = next(iter(steps("--teacher", tmp_path / "models/bi", tmp_path / "models/bi_2").items()))
    assert name == "cross_encoder-round_1-pairs-1"
    assert (flags["--model"], flags["--teacher"]) == ("models/bi", "models/bi models/bi_2")


def test_an_ensemble_labels_once_for_all(steps):
    """Fails if the seeds of an ensemble do not read the same labels, by all teachers."""
    found = steps("--seeds", 1, 2, "--ensemble")
    mined = [name for name in found if "pairs" in name]
    assert mined == ["cross_encoder-round_1-pairs-1", "bi_encoder-round_1-pairs-1"]
    assert found[mined[0]]["--teacher"] == "bi_encoder-round_0-1 bi_encoder-round_0-2"
    corpora = {found[f"cross_encoder-round_1-taught-{seed}"]["--corpus"] for seed in (1, 2)}
    assert corpora == {found[mined[0]]["--output"]}


def test_labels_with_the_pairs_and_a_student_alone(steps):
    """Fails if labels are left out of what a student learns, or nothing shows what a teacher adds."""
    found = steps("--labels", "with", "--alone")
    assert found["cross_encoder-round_1-1"]["--corpus"] == "cross_encoder-round_1-pairs-1/lcqmc_taught lcqmc"
    assert found["cross_encoder-round_1-1"]["--config"] == "recipes/cross_encoder/taught_mini.yaml"
    alone = found["cross_encoder-round_0-1"]
    assert alone["--corpus"] == "lcqmc" and "--model_name_or_path" not in alone


def test_a_step_with_other_flags_or_data_is_refused(tmp_path):
    """Fails if models of two settings, or of two versions of a corpus, end up in one table."""
    step = teach.Step(tmp_path, ["cosent.train", "--scale=1"])
    assert not step.finished("a1")
    (tmp_path / teach.DONE).write_text(json.dumps([*step.job, "data=a1"]))
    assert step.finished("a1")
    with pytest.raises(InputError, match=": --scale=1, now --scale=2"):
        teach.Step(tmp_path, ["cosent.train", "--scale=2"]).finished("a1")
    with pytest.raises(InputError, match=": data=a1, now data=b2"):
        step.finished("b2")


def test_the_table_shows_what_teaching_adds(make_study):
    """Fails if a gain is over another tower or seed, has the wrong sign, or a model is compared with itself."""
    names = {"bi_encoder round_0": 3.0, "cross_encoder round_1": 0.5}
    header, _, alone, taught = teach.teaching_table(read_results(make_study(names))).splitlines()[:4]
    assert header.startswith("| lcqmc, Spearman x100 | validation | test | test, minus bi_encoder round_0 |")
    assert alone.endswith("|  |  | 2 |") and taught.split("|")[4].startswith(" +") and taught.endswith("|  | 2 |")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")
def test_a_stopped_job_leaves_nothing_running(flags, tmp_path):
    """Fails if a training goes on in the dark after Ctrl-C or `kill`."""
    words = [*flags, "--set", "num_train_epochs=100000", "eval_strategy=no", "save_strategy=no", "logging_steps=1"]
    command = [sys.executable, "-m", "cosent.teach", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        log = tmp_path / "out/bi_encoder-round_0-1/log.txt"
        while not (log.is_file() and "step 1" in log.read_text()):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
        assert len(started_in(tmp_path)) == 3, "the job, a launcher and a training"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and "the same command continues" in errors
        assert not started_in(tmp_path) and not (tmp_path / "out/bi_encoder-round_0-1" / teach.DONE).exists()
    finally:
        for other in started_in(tmp_path):
            other.kill()


def started_in(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the output of the job."""
    running = [other for other in psutil.process_iter(["cmdline"]) if other.info["cmdline"]]
    return [other for other in running if str(folder / "out") in " ".join(other.info["cmdline"])]
