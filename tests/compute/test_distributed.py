"""Several real processes (gloo, CPU) against one process with all their rows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cosent import cli
from cosent.models.bi_encoder import SentenceEncoder
from tests.launching import ROOT, apart, free_port, history, later_wins, launch, run_here

# Linear in the gradient: Adam would make large steps out of rounding errors.
WITHOUT_ROUNDING_GAINS = (
    "--optim",
    "sgd",
    "--learning_rate",
    "0.003",
    "--max_grad_norm",
    "0",
)
SMALL = ("--num_train_epochs", "2", "--logging_steps", "1", "--disable_tqdm", "true", "--use_cpu", "true")
# Two epochs that are equally good but for rounding: which one is the best is no question here.
SMALL += ("--load_best_model_at_end", "false")


def launch_jobs(jobs: list[list[str]], folder: Path, machines: int = 1) -> list[str]:
    """Runs jobs one after the other in two processes on a CPU; returns stdout of each machine."""
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = [str(ROOT / "tests/compute/session.py"), str(folder / "jobs.json")]
    return launch("ddp" if machines == 1 else "multi_node", program, machines, ACCELERATE_USE_CPU="true")


def flags(tiny_model, corpus, output: Path, batch: int, *further: str) -> list[str]:
    return later_wins([
        *("--model_name_or_path", str(tiny_model), "--corpus", str(corpus), "--output_dir", str(output)),
        *("--dropout", "0", "--per_device_train_batch_size", str(batch), "--per_device_eval_batch_size", "4"),
        *WITHOUT_ROUNDING_GAINS, *SMALL, *further,
    ])  # fmt: skip


CROSS = ("--tower", "cross_encoder", "--scale", "20", "--learning_rate", "3")  # a fresh head has small gradients
# Without what is drawn at random on each process: corrupted sources.
STUDENT = ("--corruption_share", "0", "--generation_sources", "0", "--learning_rate", "1e-3")
CASES = {  # name -> flags of two processes; of one process with the same global batch
    "cosent": ((8, ()), (16, ())),
    "angle": ((8, ("--loss", "angle")), (16, ("--loss", "angle"))),
    "in_batch": ((8, ("--loss", "cosent_in_batch")), (16, ("--loss", "cosent_in_batch"))),
    "cached_infonce": (
        (4, ("--loss", "cosent_infonce", "--cached_batch_size", "16")),
        (16, ("--loss", "cosent_infonce")),
    ),
    "mean": ((8, ("--loss", "cosine_mse")), (16, ("--loss", "cosine_mse"))),
    "head": (
        (4, ("--loss", "sbert", "--pooling", "linear_cls", "--gradient_accumulation_steps", "2")),
        (8, ("--loss", "sbert", "--pooling", "linear_cls", "--gradient_accumulation_steps", "2")),
    ),
    "balanced": ((8, ("--balanced_batches", "true")), (16, ("--balanced_batches", "true"))),
    "cross_encoder": ((8, (*CROSS,)), (16, (*CROSS,))),
    "cached": (
        (4, ("--cached_batch_size", "16", "--gradient_accumulation_steps", "2")),
        (16, ("--gradient_accumulation_steps", "2")),
    ),
    "cached_lora_cross_encoder": (
        (4, ("--cached_batch_size", "16", *CROSS, "--use_peft", "true", "--packing", "false")),
        (16, (*CROSS, "--use_peft", "true", "--packing", "false")),
    ),
}  # fmt: skip


RESUMED = {"plain": (), "mixed": ("--balanced_batches", "true")}  # 5 steps per epoch, a checkpoint after every third
EVERY_THIRD = ("--save_steps", "3", "--save_strategy", "steps", "--save_total_limit", "9", "--eval_strategy", "no")
EVERY_THIRD += ("--dropout", "0.1")


@pytest.fixture(scope="module")
def teaching(tiny_model, tmp_path_factory) -> tuple[str, ...]:
    """Flags of a student with a teacher, whose answers both sides keep in one cache."""
    return (*STUDENT, "--teacher", str(tiny_model), "--teacher_cache", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def one(tiny_model, tiny_student, uneven_corpus, teaching, tmp_path_factory) -> Path:
    """Folder of what one process trained."""
    folder = tmp_path_factory.mktemp("one")
    for name, (_, (batch, more)) in CASES.items():
        run_here("train", *flags(tiny_model, uneven_corpus, folder / name, batch, *more))
    run_here("distill", *flags(tiny_student, uneven_corpus, folder / "student", 16, *teaching))
    return folder


@pytest.fixture(scope="module")
def two(tiny_model, tiny_student, uneven_corpus, teaching, tmp_path_factory) -> Path:
    """Folder of what two processes trained and wrote, all launched once; `output.txt` is what they printed."""
    folder = tmp_path_factory.mktemp("two")
    sentences = folder / "sentences.txt"
    sentences.write_text("".join(f"第{number}个问题怎么还款\n" for number in range(9000)), encoding="utf-8")

    def train(name: str, batch: int, *more: str) -> list[str]:
        return ["train", *flags(tiny_model, uneven_corpus, folder / name, batch, *more)]

    jobs = [train(name, batch, *more) for name, ((batch, more), _) in CASES.items()]
    jobs.append(train("local", 8, "--local_comparisons", "true"))
    jobs.append(["distill", *flags(tiny_student, uneven_corpus, folder / "student", 8, *teaching)])
    jobs.append(["encode", "--model", str(tiny_model), "--text", str(sentences), "--output", f"{folder}/vectors.npy"])
    evaluation = ["--model", str(folder / "cosent"), "--corpus", str(uneven_corpus)]
    jobs.append(["evaluate", *evaluation, "--predictions", f"{folder}/predictions.tsv"])
    for name, more in RESUMED.items():
        jobs.append(train(f"whole_{name}", 8, *EVERY_THIRD, *more))
        resume = ("--resume_from_checkpoint", str(folder / f"whole_{name}/checkpoint-6"))
        jobs.append(train(f"resumed_{name}", 8, *EVERY_THIRD, *more, *resume))
    (folder / "output.txt").write_text(launch_jobs(jobs, folder)[0], encoding="utf-8")
    return folder


@pytest.mark.distributed
@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_as_one_with_the_doubled_batch(one, two, tiny_model, name):
    """Fails if devices optimise something of their own: in any loss, either tower, cached, accumulated, with LoRA."""
    assert apart(one / name, two / name, Path(tiny_model)) < 1e-3
    np.testing.assert_allclose(history(two / name, "loss"), history(one / name, "loss"), rtol=1e-4)
    once, twice = (json.loads((folder / name / "run.json").read_text()) for folder in (one, two))
    assert twice["processes"] == 2 and once["processes"] == 1
    assert twice["proof"]["reloaded"] < 1e-5 and twice["proof"]["moved"] > 0
    for split, metrics in once["after"]["made_up"].items():
        # Pairs and their mirror images tie; rows in another order would be far off.
        assert twice["after"]["made_up"][split]["spearman"] == pytest.approx(metrics["spearman"], abs=0.05)


@pytest.mark.distributed
def test_comparing_on_each_device_is_another_training(one, two, tiny_model):
    """Fails if the test above would pass without gathering."""
    assert apart(one / "cosent", two / "local", Path(tiny_model)) > 0.03


@pytest.mark.distributed
def test_two_processes_distil_as_one(one, two, tiny_student):
    """Fails if a student compares the sentences of each device only, or each device asks another teacher."""
    assert apart(one / "student", two / "student", Path(tiny_student)) < 1e-3


@pytest.mark.distributed
@pytest.mark.parametrize("name", RESUMED)
def test_two_processes_resume_within_an_epoch(two, name):
    """Fails if a resumed run reads other pairs, or draws other dropout, than the one that was not interrupted."""
    whole, resumed = (load_file(two / f"{run}_{name}" / "model.safetensors") for run in ("whole", "resumed"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


@pytest.mark.distributed
def test_one_process_speaks_for_all(two):
    """Fails if every process reports the same run."""
    trainings = len(CASES) + 2 + 2 * len(RESUMED)
    assert (two / "output.txt").read_text(encoding="utf-8").count("model in ") == trainings


@pytest.mark.distributed
def test_two_processes_share_out_a_file(two, tiny_model):
    """Fails if a chunk of the vectors is missing, or belongs to other lines."""
    rows = np.load(two / "vectors.npy")
    assert rows.shape == (9000, 32) and not (rows == 0).all(axis=1).any()
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(["第8191个问题怎么还款", "第0个问题怎么还款"])
    np.testing.assert_allclose(rows[[8191, 0]], expected, atol=1e-5)


@pytest.mark.distributed
def test_two_processes_write_one_file_of_predictions(two):
    """Fails if a pair is missing, or is written twice."""
    lines = (two / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == [str(number) for number in range(53)]


@pytest.mark.distributed
def test_two_machines_are_two_processes(tiny_model, uneven_corpus, tmp_path):
    """Fails if --num_machines 2 trains two models, or another one than two processes of one machine."""
    outputs = launch_jobs([["train", *flags(tiny_model, uneven_corpus, tmp_path / "two", 8)]], tmp_path, machines=2)
    run_here("train", *flags(tiny_model, uneven_corpus, tmp_path / "one", 16))
    assert apart(tmp_path / "one", tmp_path / "two", Path(tiny_model)) < 1e-3
    assert sum(output.count("model in ") for output in outputs) == 1


@pytest.mark.distributed
def test_gradients_come_through_the_gathering(tmp_path):
    """Fails if a gathered row's gradient lacks what the other ranks' losses add to it."""
    script = tmp_path / "gather.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from cosent.compute.distributed import decided_by_main, gather, gather_object, rank\n"
        "from cosent.data.manifest import InputError\n"
        "dist.init_process_group('gloo')\n"
        "values = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) + 10 * rank()\n"
        "values = values.t().requires_grad_()  # not contiguous\n"
        "pool = gather(values)  # (4, 2)\n"
        "weights = torch.arange(8.0).view(4, 2) * (rank() + 1)  # every rank has a loss of its own\n"
        "grad, = torch.autograd.grad((pool * weights).sum(), values)\n"
        "assert pool.tolist() == [[1, 3], [2, 4], [11, 13], [12, 14]], pool\n"
        "assert grad.tolist() == (3 * torch.arange(8.0).view(4, 2))[2 * rank():][:2].tolist(), grad\n"
        "assert gather_object(rank()) == [0, 1]\n"
        "assert decided_by_main(lambda: ('main', rank())) == ('main', 0)\n"
        "def refuse():\n"
        "    raise InputError('no')\n"
        "try:\n"
        "    decided_by_main(refuse)\n"
        "except InputError as error:\n"
        "    print('refused', error)\n"
        "dist.barrier()\n"
        "import os, sys\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"  # gloo's threads sometimes abort a process that ends in the usual way
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        str(free_port()),
    ]
    settings = os.environ | {"PYTHONPATH": f"{ROOT}/src", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, str(script)], env=settings, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("refused") == 2


@pytest.mark.distributed
def test_processes_that_do_not_know_of_each_other_stop(tiny_model, uneven_corpus, tmp_path):
    """Fails if the settings that one tries first on a CPU write one folder from two processes."""
    (tmp_path / "cpu.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: 'no'\nnum_machines: 1\n"
        "num_processes: 2\nuse_cpu: true\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "cpu.yaml")]
    command += ["--main_process_port", str(free_port()), "-m", "cosent.train"]
    arguments = flags(tiny_model, uneven_corpus, tmp_path / "run", 8)
    arguments = arguments[: arguments.index("--use_cpu")] + arguments[arguments.index("--use_cpu") + 2 :]
    settings = {key: value for key, value in os.environ.items() if key != "ACCELERATE_USE_CPU"}
    settings |= {"PYTHONPATH": f"{ROOT}/src", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([*command, *arguments], env=settings, capture_output=True, text=True, timeout=300)
    assert result.returncode != 0
    assert "2 processes were launched, but this job sees 1" in result.stderr, result.stderr[-3000:]
    assert not (tmp_path / "run").exists()


@pytest.mark.distributed
def test_serving_jobs_share_out_their_work_on_a_cpu(tiny_model, tmp_path):
    """Fails if encode, launched in two processes as documented, does not see them and is refused."""
    (tmp_path / "two.txt").write_text("怎么还款\n如何还款\n", encoding="utf-8")
    words = ["--model", str(tiny_model), "--text", str(tmp_path / "two.txt"), "--output", str(tmp_path / "two.npy")]
    (output,) = launch("ddp", ["-m", "cosent.encode", *words], ACCELERATE_USE_CPU="true")
    assert output.count('"rows": 2') == 1
    assert np.load(tmp_path / "two.npy").shape == (2, 32)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    "words", [["report", "x"], ["study", "x"], ["similarity", "--model", "x"], ["generate", "--model", "x"]]
)
def test_jobs_for_one_process_stop_too(words, monkeypatch, capsys):
    """Fails if a report or a study runs twice at once when it is launched like a training job."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["cosent", *words])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "error: 2 processes were launched, but this job sees 1" in capsys.readouterr().err


def test_gathering_alone_changes_nothing():
    """Fails if one process pays for, or loses gradients in, what only several need."""
    from cosent.compute.distributed import decided_by_main, gather, gather_object

    values = torch.ones(3, requires_grad=True)
    assert gather(values) is values
    assert gather_object(5) == [5] and decided_by_main(lambda: 7) == 7
