"""A recipe gives the defaults, flags win, and nothing unknown is swallowed."""

import logging
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from transformers import HfArgumentParser

from cosent import cli
from cosent.cli import run
from cosent.errors import InputError
from cosent.flags import HIDDEN, REQUIRED, SHOWN, Parser, as_words, flags_of, option, parse, recipe_file
from cosent.jobs.arguments import ModelSource
from cosent.models.prompts import PromptArguments
from cosent.training.arguments import TRAIN_ARGUMENTS, LossArguments, ModelArguments
from tests.support.launching import free_port


@dataclass
class Arguments:
    corpus: str = option(REQUIRED, "required")
    learning_rate: float = 0.1
    num_train_epochs: int = 3
    packing: bool = True
    seeds: list[int] | None = None
    features: list[str] = option(["u"], "parts of a head")
    tower: str = option("bi_encoder", "a choice", ["bi_encoder"])
    texts: list[str] | None = option(None, "sentences", positional=True, commas=True)
    config: str | None = field(default=None, compare=False)


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(recipe):
    """Fails if a user's flag is ignored in favour of the file, or 2e-5, which is text to YAML, is no number."""
    path = recipe("corpus: stsb\nlearning_rate: 2e-5\nnum_train_epochs: 5\n")
    (args,) = parse(["--config", path, "--num_train_epochs", "7"], Arguments)
    assert args == Arguments(corpus="stsb", learning_rate=2e-5, num_train_epochs=7)
    for word, value in (("-1e-5", -1e-5), ("-.5e+2", -50.0), ("1_000", 1000.0)):  # argparse takes -1e-5 for a flag
        assert parse(["--corpus", "a", "--learning_rate", word], Arguments)[0].learning_rate == value
    with pytest.raises(InputError, match="--corpus is missing"):
        parse([], Arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus: a\nlearning_rat: 1.0\n", "unknown key 'learning_rat'. Did you mean 'learning_rate'"),
        ("corpus: a\n1: 1.0\n", "unknown key '1'"),
        ("corpus: a\ncorpus: b\n", "'corpus' occurs twice"),
        ("- corpus", "recipe.yaml"),
        ("~: x", "recipe.yaml.*key is not text"),
        ("? [a, b]\n: c", "recipe.yaml.*key is not text"),
        ("corpus: " + "[" * 999 + "]" * 999, "recipe.yaml.*RecursionError"),
        ("corpus: {name: a}", "recipe.yaml"),
        ("corpus: [a", "recipe.yaml"),
        ("corpus: a\nlearning_rate: [1, 2]\n", r"learning_rate.*\[1, 2\]"),
        ("corpus: a\nfeatures: u,v\n", "recipe.yaml: .*--features.* u v, got 'u,v'"),
        ("corpus: a\ntower: cross_encoder\n", "recipe.yaml: .*--tower.*'cross_encoder'.*bi_encoder"),
    ],
)
def test_a_recipe_that_is_wrong(recipe, text, message):
    """Fails if a misspelt or repeated key is dropped, a choice goes unchecked, or broken YAML ends in a trace."""
    with pytest.raises(InputError, match=message):
        parse(["--config", recipe(text)], Arguments)


def test_a_recipe_of_another_encoding(recipe):
    """Fails if a recipe that an editor saved as UTF-16 ends in a traceback."""
    file = Path(recipe(""))
    file.write_text("corpus: a", encoding="utf-16")
    with pytest.raises(InputError, match=r"recipe.yaml.*UTF-8"):
        parse(["--config", str(file)], Arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learning_rat", "3"], "Did you mean '--learning_rate'"),
        (["--learning-rats=3"], "Did you mean '--learning_rate'"),
        (["--lr", "3"], "--learning_rate"),  # the initials, not a flag of as many letters
        (["--epochs", "3"], "--num_train_epochs"),
        (["--warmup_ratio", "0.1"], "'--warmup_ratio'.*--warmup_steps 0.1"),
        (["--sentence_pooling_method", "last_token"], "'--sentence_pooling_method'.*--pooling.* lasttoken"),
        (["--train_group_size", "8"], "'--train_group_size'.*cosent prepare"),
        (["--task_type", "embedding"], "'--task_type'.*--tower bi_encoder"),
        (["--batch-size=64"], "'--batch_size.*--per_device_train_batch_size"),
        (["--evaluation_strategy", "epoch"], "--eval_strategy"),
        (["--max_seq_length", "64"], "--max_length"),
        (["--dataloader_in_order"], "'--dataloader_in_order'.*leave it out"),
        (["--lr", "3", "--epochs=3", "--corpsu", "a"], "'--lr'.*'--epochs'.*'--corpsu'.*'--corpus'"),  # all at once
        (["--no_cuda"], "--use_cpu true"),
        (["--corpsu", "stsb"], "'--corpsu'. Did you mean '--corpus'"),
        (["a.txt", "--learning_rate", "1"], "'a.txt'"),
        (["--num_train_epochs", "many"], "--num_train_epochs.*'many'"),
        (["--use_cpu", "perhaps"], "--use_cpu.*'perhaps'"),
        (["--learning_rate"], "--learning_rate"),
        (["--config"], "--config"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--seed", "1", "--seed=2"], "--seed is given twice"),
        (["--packing", "--no_packing"], "--no_packing is given twice"),
        (["--corpus", "a", "--output_dir", "x", "--use_cpu", "--learning_rate", "-1e-5"], "--learning_rate must not"),
        (["--corpus", "a", "--output_dir", "x", "--use_cpu", "--weight_decay", "nan"], "--weight_decay must not"),
    ],
)
def test_a_wrong_command_line_is_one_message(flags, message):
    """Fails if a typing mistake is ignored, guessed at, or ends in a page of usage or a traceback."""
    with pytest.raises(InputError, match=message):
        parse(flags, *TRAIN_ARGUMENTS)


def test_a_model_has_two_names():
    """Fails if `--model` of inference is refused by a training, or `--model_name_or_path` of training by inference."""
    assert parse(["--model", "similar"], ModelArguments)[0].model_name_or_path == "similar"
    assert parse(["--model_name_or_path", "mini"], ModelSource)[0].model == "mini"
    with pytest.raises(InputError, match="twice"):
        parse(["--model", "similar", "--model_name_or_path", "mini"], ModelArguments)


def test_a_recipe_is_found_by_name(tmp_path, monkeypatch):
    """Fails if shipped recipes are found from the root of a clone only, or a name means another recipe than it says."""
    monkeypatch.chdir(tmp_path)
    shipped = [
        recipe_file(name) for name in ("cosent_mini", "bi_encoder/cosent_mini", "recipes/bi_encoder/cosent_mini.yaml")
    ]
    assert len(set(shipped)) == 1 and Path(shipped[0]).parts[-2:] == ("bi_encoder", "cosent_mini.yaml")
    assert Path(recipe_file("cross_encoder/cosent_mini")).parts[-2:] == ("cross_encoder", "cosent_mini.yaml")
    assert Path(recipe_file("cpu.yaml", "accelerate")).parts[-2:] == ("accelerate", "cpu.yaml")
    Path("cosent_mini").write_text("corpus: a", encoding="utf-8")
    assert recipe_file("cosent_mini") == "cosent_mini"
    for folder in ("one", "other"):
        (tmp_path / "recipes" / folder).mkdir(parents=True)
        (tmp_path / "recipes" / folder / "mini.yaml").touch()
    with monkeypatch.context() as patched, pytest.raises(InputError, match="one/mini and other/mini"):
        patched.setattr("cosent.flags.RECIPES", tmp_path / "recipes")
        recipe_file("mini")
    with pytest.raises(InputError, match="'cosent_mini'"):
        recipe_file("cosent_mnii")


def test_a_list_is_separated_by_spaces(recipe):
    """Fails if two corpora become one of a long name, a recipe's list one string, or a sentence may hold no comma."""
    (flags,) = parse(["--corpus", "a", "--seeds", "1", "2", "--features", "u", "|u-v|"], Arguments)
    assert (flags.seeds, flags.features, flags.texts) == ([1, 2], ["u", "|u-v|"], None)
    (yaml,) = parse(["--config", recipe("corpus: a\nseeds: [1, 2]\nfeatures: [u, '|u-v|']\n")], Arguments)
    assert yaml == flags
    assert parse(["--config", recipe("corpus: a\nfeatures: uv\n")], Arguments)[0].features == ["uv"]
    assert parse(as_words({"corpus": "a", "seeds": [1, 2], "features": ["u", "|u-v|"]}), Arguments)[0] == flags
    assert parse(["--corpus", "a", "Hello, world", "b"], Arguments)[0].texts == ["Hello, world", "b"]
    texts = ["--no", "--corpus", "-1e-5"]
    assert parse(["--corpus", "a", "--", *texts], Arguments)[0].texts == texts


@pytest.mark.parametrize(
    ("flags", "packing"),
    [
        ([], True),
        (["--no_packing"], False),
        (["--packing", "false"], False),
        (["--packing"], True),
        (["--no-packing"], False),
        (["--packing=no"], False),
        (["--packing", "OFF"], False),
    ],
)
def test_a_switch_has_every_spelling(flags, packing):
    """Fails if `--packing false` packs, or the switch cannot be turned off in one word."""
    assert parse(["--corpus", "a", *flags], Arguments)[0].packing is packing


@pytest.mark.parametrize("word", ["no", "1e3", "010", "1:30", "2024-01-02", "true", "0x1f", "null_", "~/x"])
def test_text_in_a_recipe_is_the_text_that_is_written(recipe, word):
    """Fails if YAML 1.1 reads `eval_strategy: no` as false, 010 as 8, 1:30 as 90 and a date as a date."""
    (from_recipe,) = parse(["--config", recipe(f"corpus: {word}\n")], Arguments)
    assert from_recipe == parse(["--corpus", word], Arguments)[0] and from_recipe.corpus == word


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_null_is_only_for_what_may_be_none(recipe, word):
    """Fails if `num_train_epochs: null` reaches training as None, or as the text null."""
    assert parse(["--config", recipe(f"corpus: a\nseeds: {word}\n")], Arguments)[0].seeds is None
    with pytest.raises(InputError, match="recipe.yaml: num_train_epochs"):
        parse(["--config", recipe(f"corpus: a\nnum_train_epochs: {word}\n")], Arguments)


def test_values_are_those_of_the_library():
    """Fails if a flag of TrainingArguments means something else here than in other programs that use transformers."""
    # Theirs knows neither `commas` nor the default of `str | list[str]`.
    classes = [cls for cls in TRAIN_ARGUMENTS if cls not in (PromptArguments, LossArguments)]
    words = shlex.split(
        "--corpus a b --output_dir x --use_cpu --learning_rate 2e-5 --bf16 no --lr_scheduler_type cosine "
        """--lr_scheduler_kwargs '{"num_cycles": 1}' --warmup_steps 0.1 --optim adamw_torch --gradient_checkpointing """
        "--gradient_checkpointing_kwargs {} --report_to none --no_packing "
        "--disable_tqdm true --save_strategy epoch --eval_steps 5 --use_peft --lora_target_modules query value"
    )
    library = HfArgumentParser(classes).parse_args_into_dataclasses(words, look_for_args_file=False)
    for ours, theirs in zip(parse(words, *classes), library, strict=True):
        ours, theirs = (vars(given) | {"logging_dir": None, "distributed_state": None} for given in (ours, theirs))
        assert ours == theirs


def test_every_flag_has_a_help_text(monkeypatch):
    """Fails if `--help` stops with an error, as on a per cent sign, or leaves a flag of ours unexplained."""
    monkeypatch.setenv("COLUMNS", "1000")
    classes = TRAIN_ARGUMENTS
    text = Parser(*classes, program="train", all_flags=True).format_help()
    assert "--no_packing" in text and "(default: mini)" in text and "(default: all-linear)" in text
    hidden = {name for name, flag in flags_of(*classes).items() if flag.metadata["help"] == HIDDEN}
    assert {name for name in flags_of(*classes) if f"--{name} " not in text} == hidden


def test_help_of_training_is_short(monkeypatch):
    """Fails if a user looks for --learning_rate among two hundred flags of transformers, or a shown flag is renamed."""
    monkeypatch.setenv("COLUMNS", "80")
    short, long = (Parser(*TRAIN_ARGUMENTS, all_flags=wanted).format_help() for wanted in (False, True))
    assert all(f"  --{name} " in short for name in SHOWN) and len(short.splitlines()) <= 105
    assert [line.split()[0] for line in short.splitlines() if line.startswith("  --")][1:11] == [
        f"--{name}" for name in list(SHOWN)[:10]
    ]
    assert "--adam_beta1 " not in short and "--adam_beta1 " in long


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


def test_recipes_are_offered_to_jobs_that_have_them(command, quiet_afterwards):
    """Fails if `--help` offers --config to a job that has no recipe, or not to one that has."""
    assert {job for job in cli.JOBS if "--config VALUE " in command(job, "--help")[1]} == {
        "train",
        "distill",
        "pretrain",
        "teach",
    } & set(cli.JOBS)
    status, _, errors = command("encode", "--config", "cosent_mini")
    assert status == 2 and "'--config'" in errors


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


# Names that mean different things in different jobs.
AMBIGUOUS = {
    *("corpus", "folder", "int8", "label_column", "max_length", "model", "model_name_or_path", "output", "overwrite"),
    *("rerank", "teacher", "text"),
}


def test_a_flag_is_described_in_the_same_words_by_every_job():
    """Fails if two jobs describe a flag that they share in different words, so that it seems to do different things."""
    texts = defaultdict(set)
    for job in cli.JOBS:
        for name, flag in flags_of(*cli.arguments_of(import_module(cli.module_of(job)).main)).items():
            if not flag.owner.__module__.startswith("transformers."):
                texts[name].add(flag.metadata["help"])
    assert len(texts) > 100 and all(map(all, texts.values()))
    assert {name for name, words in texts.items() if len(words) > 1} == AMBIGUOUS


def test_a_subclass_changes_a_default_alone():
    """Fails if a job with another default of a shared flag loses its description, choices or place in the help."""

    @dataclass
    class Shared:
        """Shared."""

        draw: str = option("nearest", "Which are taken.", ("nearest", "random"))

    @dataclass
    class Own(Shared):
        """Own."""

        draw: str = "random"

    flag = flags_of(Own)["draw"]
    assert (flag.default, flag.owner, flag.metadata["help"]) == ("random", Shared, "Which are taken.")
    assert parse([], Own)[0].draw == "random"
    with pytest.raises(InputError, match="--draw"):
        parse(["--draw", "all"], Own)


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
cosent.load_model
heavy = ("datasets", "peft", "pandas", "transformers.trainer", "cosent.training", "accelerate")
print([name for name in heavy if name in sys.modules], cosent.load_model.__name__)
"""


def test_help_and_the_package_load_nothing_heavy():
    """Fails if `cosent --help` or `import cosent` take seconds, or whoever only encodes waits for what trains."""
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert result.stdout == "\n[] load_model\n"


def test_the_public_names():
    """Fails if a name of the public API cannot be imported, or a misspelt one is not said to be missing."""
    import cosent

    assert set(cosent.__all__) <= set(dir(cosent))
    for name in cosent.__all__:
        assert getattr(cosent, name).__module__.startswith("cosent.")
    with pytest.raises(ImportError, match="cannot import name 'SentenceEncodr'"):
        from cosent import SentenceEncodr  # noqa: F401


THREADS = """
import sys
from cosent.cli import main
sys.argv = ["cosent", "audit", "--help"]
try:
    main()
finally:
    import torch
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has another OpenMP there")
def test_waiting_threads_leave_the_cores_to_others(monkeypatch):
    """Fails if a command next to another busy program takes nine times as long, or a user's own choice is lost."""
    for own in ({"GOMP_SPINCOUNT": "5"}, {"OMP_WAIT_POLICY": "active"}, {}):
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in own.items():
            monkeypatch.setenv(name, value)
        cli.let_waiting_threads_sleep()
        assert os.environ.get("GOMP_SPINCOUNT") == ("1000" if not own else own.get("GOMP_SPINCOUNT"))
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")  # libgomp prints what it has read
    process = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)
    assert "GOMP_SPINCOUNT = '1000'" in process.stderr


@pytest.fixture
def launched(tiny_model, tmp_path):
    """Command line and environment of `cosent encode` in two processes."""
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 3}
    config |= {"main_process_port": free_port(), "mixed_precision": "no", "num_machines": 1, "use_cpu": False}
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (tmp_path / "two.txt").write_text("怎么还款\n如何还款\n", encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    flags = {"launch": tmp_path / "ours.yaml", "processes": 2, "model": tiny_model, "text": tmp_path / "two.txt"}
    words = as_words({name: str(value) for name, value in flags.items()} | {"output": str(tmp_path / "v.npy")})
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_DISPLAY_ENV": "verbose", "TMPDIR": str(tmp_path / "tmp")}
    return [sys.executable, "-c", "from cosent.cli import main; main()", "encode", *words], os.environ | hidden


@pytest.mark.distributed
def test_a_job_starts_its_own_processes(launched, tmp_path, command, quiet_afterwards):
    """Fails if --launch starts another job or other processes than asked for, each does all of the work, or a launch
    leaves a folder behind."""
    words, environment = launched
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count('"rows": 2') == 1, done.stderr
    assert sys.platform != "linux" or done.stderr.count("GOMP_SPINCOUNT = '1000'") >= 2, done.stderr
    assert not list((tmp_path / "tmp").glob("torchelastic*"))
    status, _, errors = command(*words[3:], "--tex", "a")
    assert status == 2 and "'--tex'" in errors and errors.count("\n") == 1


@pytest.mark.distributed
@pytest.mark.matrix
def test_a_launch_that_fails_is_one_message(launched, tmp_path):
    """Fails if an error of one process, or Ctrl-C, ends a launch in a traceback."""
    words, environment = launched
    (tmp_path / "v.npy").write_text("")
    failed = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert failed.returncode == 2 and "v.npy exists" in failed.stderr, failed.stderr
    assert "Traceback" not in failed.stderr, failed.stderr
    stopped = subprocess.Popen([*words, "--overwrite"], env=environment, stderr=subprocess.PIPE, text=True)
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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no SIGTERM")
def test_sigterm_inside_a_finalizer():
    """Fails if a job runs on since Python drops exceptions of `__del__`, where garbage collection met the signal."""
    code = (
        "import os, signal, time\nfrom cosent.cli import run\n"
        "class Held:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\n        time.sleep(60)\n"
        "def job():\n    held = Held()\n    del held\n    time.sleep(60)\n"
        "run(job)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (process.returncode, process.stderr) == (130, "stopped\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("lines", [1, 10_000], ids=["at the end", "in the middle"])
def test_a_full_disk_behind_stdout_is_said(lines):
    """Fails if the results of `cosent generate ... > file` end in the middle, with a traceback or without a word."""
    code = f"from cosent.cli import run\ndef job():\n    for _ in range({lines}): print('x' * 70)\nrun(job)"
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert process.returncode == 2
    assert re.fullmatch(
        r"error: .*No space left on device: the output is .* Make room and try again.\n", process.stderr
    )
