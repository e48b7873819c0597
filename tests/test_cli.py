"""The command lists its jobs, runs them, and ends them as other programs end."""

import logging
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from cosent import cli
from cosent.cli import run
from cosent.flags import as_words
from tests.support.launching import free_port


def test_help_shows_what_a_run_without_a_recipe_takes(monkeypatch, capsys):
    """Fails if --help of a training job shows the defaults of transformers where the default recipe has others."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(sys, "argv", ["cosent", "train", "--help"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    text = " ".join(capsys.readouterr().out.split())
    for name, value in {"loss": "cosent_in_batch", "per_device_train_batch_size": 32, "warmup_steps": 0.1}.items():
        assert text.partition(f" --{name} ")[2].partition("(default: ")[2].startswith(f"{value})")


@pytest.fixture
def command(monkeypatch, capsys):
    """Returns a function that runs `cosent ...` and gives back its exit status, stdout and stderr."""

    def type_in(*words):
        monkeypatch.setattr(sys, "argv", ["cosent", *words])
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return type_in


@pytest.fixture
def quiet_afterwards():
    """Puts logging back as it was."""
    package = logging.getLogger("cosent")
    level = package.level
    yield
    package.setLevel(level)
    logging.disable(logging.NOTSET)


def test_a_training_chooses_its_recipe(made_up, monkeypatch, tmp_path):
    """Fails if `cosent train --corpus demo` trains by other settings than its recipe, or --config or flags lose."""
    chosen: dict = {}
    monkeypatch.setattr(cli, "fill", lambda values, *classes: chosen.update(values) or sys.exit(0))

    def choose(job, *words):
        chosen.clear()
        monkeypatch.setattr(sys, "argv", ["cosent", job, "--corpus", str(made_up), *words])
        with pytest.raises(SystemExit):
            cli.main()
        return {name: chosen.get(name) for name in ("config", "output_dir", "tower", "loss", "warmup_steps")}

    ours = {"config": "bi_encoder/default", "output_dir": "runs/made_up", "warmup_steps": 0.1}
    assert choose("train") == ours | {"tower": None, "loss": "cosent_in_batch"}
    assert choose("train", "--loss", "angle", "--output_dir", "x") == ours | {
        **{"tower": None, "loss": "angle", "output_dir": "x"}
    }
    cross = {"config": "cross_encoder/default", "tower": "cross_encoder", "loss": "cosent"}
    assert choose("train", "--tower", "cross_encoder") == ours | cross
    assert choose("train", "--config", "sbert")["config"] == "sbert" and chosen["pooling"] == "cls"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("output_dir: runs/mine\nloss: angle\n", encoding="utf-8")
    assert choose("train", "--config", str(recipe))["output_dir"] == "runs/mine"
    assert choose("train", "--config", str(recipe), "--output_dir", "x")["output_dir"] == "x"
    assert choose("distill")["config"] == "student/stage1"
    assert choose("distill", "--teacher", "x")["config"] == "student/distill"


def test_the_command_lists_every_job(command):
    """Fails if a job of the package is not in the list that a newcomer sees, or a name of the list is no job."""
    status, text, _ = command("--help")
    assert status == 0 and command()[1] == text
    files = Path(cli.__file__).parent.glob("jobs/*.py")
    jobs = {file.stem for file in files if "\ndef main(" in file.read_text(encoding="utf-8")}
    assert jobs == {name for name, job in cli.JOBS.items() if job.package == "cosent.jobs"} and len(jobs) >= 9
    for name, job in cli.JOBS.items():
        assert f"  {name:<12}{job.does}\n" in text
        assert cli.arguments_of(import_module(cli.module_of(name)).main)


def test_a_job_runs_as_with_python_m(command, quiet_afterwards):
    """Fails if `cosent similarity` is another job than `python -m cosent similarity`, or its flags do not arrive."""
    status, text, _ = command("similarity", "--model", "mini", "怎么还款", "如何还款")
    assert status == 0 and text.endswith("  怎么还款  |  如何还款\n")
    assert -1 <= float(text.splitlines()[1].split()[0]) <= 1
    status, _, errors = command("similarity", "--model", "mini", "怎么还款")
    assert status == 2 and errors.startswith("error: ") and "怎么还款" in errors
    assert command("similarity", "--help")[1].startswith("usage: cosent similarity ")
    status, _, errors = command("similarty", "--model", "mini")
    assert status == 2 and "'similarty'" in errors and "'similarity'" in errors
    status, text, errors = command("--version")
    assert (status, errors) == (0, "") and text.startswith(f"cosent {cli.__version__}\ntorch {version('torch')}\n")
    assert text.endswith(f"Python {platform.python_version()} on {platform.platform()}\n")


@dataclass
class NoArguments:
    """A job without flags."""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_what_a_job_shows_of_its_log(monkeypatch, capsys, quiet_afterwards, rank):
    """Fails if progress is hidden or called a warning, a library chats, or every process says the same."""

    def job(_: NoArguments):
        logging.getLogger("cosent.jobs.train").info("resuming from %s", "here")
        logging.getLogger("cosent.jobs.train").warning("cut off")
        logging.getLogger("library").info("chat")
        logging.getLogger("library").warning("old")
        logging.getLogger("DeepSpeed").warning("Setting accelerator to CPU. If you have GPU ...")
        return 1

    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own: logging is configured by none yet
    monkeypatch.setattr(sys, "argv", ["job"])
    monkeypatch.setenv("RANK", rank)
    with pytest.raises(SystemExit, match="1"):  # the status of the job, as of a study with failed runs
        run(job)
    expected = "resuming from here\nwarning: cut off\nwarning: old\n"
    assert capsys.readouterr() == ("", expected if rank == "0" else "")


LIGHT = """
import sys
import cosent
from cosent import cli
from cosent.flags import Parser
from importlib import import_module
from importlib.metadata import version
for job in {*cli.JOBS} - {"train", "distill"}:
    Parser(*cli.arguments_of(import_module(cli.module_of(job)).main)).format_help()
slow = "torch transformers datasets pandas scipy accelerate peft matplotlib jinja2"
print(*sorted({*slow.split()} & set(sys.modules)))
cosent.SentenceEncoder, cosent.CrossEncoder
heavy = ("datasets", "peft", "pandas", "transformers.trainer", "cosent.training", "accelerate")
print([name for name in heavy if name in sys.modules], cosent.SentenceEncoder.__name__)
"""


def test_help_and_the_package_load_nothing_heavy():
    """Fails if `cosent --help` or `import cosent` take seconds, or whoever only encodes waits for what trains."""
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert result.stdout == "\n[] SentenceEncoder\n"


def test_waiting_threads_leave_the_cores_to_others(monkeypatch):
    """Fails if a command next to another busy program takes nine times as long, or a user's own choice is lost."""
    for own in ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}, {}):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        cli.let_waiting_threads_sleep()
        assert os.environ.get("GOMP_SPINCOUNT") == ("1000" if not own else own.get("GOMP_SPINCOUNT"))


@pytest.mark.distributed
@pytest.mark.matrix
def test_a_job_starts_its_own_processes(tiny_model, made_up, tmp_path):
    """Fails if --launch starts other processes than asked for, each does all of the work, a launch leaves a folder
    behind, or an error of one process, or Ctrl-C, ends it in a traceback."""
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 3}
    config |= {"main_process_port": free_port(), "mixed_precision": "no", "num_machines": 1, "use_cpu": False}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    flags = {"launch": tmp_path / "ours.yaml", "processes": 2, "model_name_or_path": tiny_model, "corpus": made_up}
    flags |= {"output_dir": tmp_path / "run", "max_steps": 1, "pooling": "mean"}
    words = [sys.executable, "-m", "cosent", "train", *as_words({name: str(value) for name, value in flags.items()})]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_DISPLAY_ENV": "verbose", "TMPDIR": str(tmp_path / "tmp")}
    options = {"env": os.environ | hidden, "text": True, "stderr": subprocess.PIPE}

    done = subprocess.run(words, stdout=subprocess.PIPE, **options)
    assert done.returncode == 0 and done.stdout.count("model in ") == 1, done.stderr
    assert sys.platform != "linux" or done.stderr.count("GOMP_SPINCOUNT = '1000'") >= 2, done.stderr
    assert not list((tmp_path / "tmp").glob("torchelastic*"))
    failed = subprocess.run(words, **options)  # the model is there
    assert failed.returncode == 2 and "--overwrite_output_dir" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr, failed.stderr
    stopped = subprocess.Popen([*words, "--overwrite_output_dir"], **options)
    assert any("no GPU" in line for line in stopped.stderr)
    stopped.send_signal(signal.SIGINT)
    assert "Traceback" not in stopped.communicate(timeout=60)[1] and stopped.returncode == 130


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGTERM")
def test_sigterm_ends_a_job_as_ctrl_c_does(monkeypatch, capsys):
    """Fails if `docker stop`, `timeout` or Slurm leaves partial files and child processes behind."""
    monkeypatch.setattr(sys, "argv", ["job"])
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def job():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(True)

    with pytest.raises(SystemExit, match="130"):
        run(job)
    assert cleaned and capsys.readouterr().err == "stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_stdout_is_said():
    """Fails if the results of `cosent generate ... > file` end in the middle, with a traceback or without a word."""
    code = "from cosent.cli import run\ndef job():\n    for _ in range(10_000): print('x' * 70)\nrun(job)"
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 2
    assert re.fullmatch(
        r"error: .*No space left on device: the output is .* Make room and try again.\n", process.stderr
    )
