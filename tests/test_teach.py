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
from cosent.studies import teaching
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

    def follow(job, folder, accelerate_config, threads):
        ran.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)
        run_here(job[0].removeprefix("cosent."), *job[1:])

    monkeypatch.setattr(teaching, "follow", follow)
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
    assert (out / "results/bi_encoder-round_1-1.npz").is_file(), "a report has no intervals without the scores"
    here.clear()
    assert job(*flags) == 0 and here == [], "finished steps were repeated"
    again = capsys.readouterr().out
    assert again.startswith("| made_up, Spearman x100 | validation | test |") and said.endswith(again)
    for name in ("cross_encoder-round_1-pairs-1", "bi_encoder-round_1-1"):
        (out / name / teaching.DONE).unlink()  # killed between the end of the step and its note
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
        (["--set", "corpus=x"], "corpus is set by the study"),
        (["--set_taught", "batch=8"], "--set for taught pairs: .*'batch'"),
    ],
)
def test_what_is_refused_before_anything_runs(flags, here, tmp_path, changed, words):
    """Fails if a wrong flag is found after hours of training."""
    with pytest.raises(InputError, match=words):
        job(*flags, *changed)
    assert not here and not (tmp_path / "out").exists()


def test_recipes_and_teachers_of_the_wrong_tower(flags, here, tiny_model, tmp_path):
    """Fails if a cross-encoder is trained where a bi-encoder is meant, or a student's tower is a matter of chance."""
    with pytest.raises(InputError, match="does not train a bi_encoder"):
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")
def test_a_stopped_job_leaves_nothing_running(flags, tmp_path):
    """Fails if a training goes on in the dark after Ctrl-C or `kill`."""
    words = [*flags, "--set", "num_train_epochs=100000", "eval_strategy=no", "save_strategy=no"]
    command = [sys.executable, "-m", "cosent.teach", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        while not (tmp_path / "out/bi_encoder-round_0-1/progress.json").is_file():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
        assert len(started_in(tmp_path)) == 3, "the job, a launcher and a training"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and "the same command continues" in errors
        assert not started_in(tmp_path) and not (tmp_path / "out/bi_encoder-round_0-1" / teaching.DONE).exists()
    finally:
        for other in started_in(tmp_path):
            other.kill()


def started_in(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the output of the job."""
    running = [other for other in psutil.process_iter(["cmdline"]) if other.info["cmdline"]]
    return [other for other in running if str(folder / "out") in " ".join(other.info["cmdline"])]
