"""The `cosent` command: its jobs, how one runs, and how it is launched in several processes."""

import atexit
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, get_type_hints

from cosent import __version__
from cosent.compute.processes import PARENT_VARIABLE, end_with_parent
from cosent.errors import InputError, messages_for_users
from cosent.flags import Parser, fill, nearest, parser_of, recipe_file, with_underscores


@dataclass(frozen=True)
class Job:
    """A job of the command: the `main` of a module of its name, whose annotations are its argument classes.

    Args:
        does: its line in `cosent --help`.
        shares_work: whether several processes share its work; False refuses several.
        recipes: whether it takes --config; its module's `defaults` then names a recipe.
        package: the package of its module.
    """

    does: str
    shares_work: bool = False
    recipes: bool = False
    package: str = "cosent.jobs"


JOBS = {
    "prepare": Job("prepare a corpus from raw files, or from pairs of your own", package="cosent.data_scripts"),
    "audit": Job("look for duplicates and leaks in a prepared corpus", package="cosent.data_scripts"),
    "train": Job("fine-tune an encoder on labelled pairs", shares_work=True, recipes=True),
    "distill": Job("train a small student that embeds and generates sentences", shares_work=True, recipes=True),
    "evaluate": Job("score a model on a corpus, a labelled file or a search"),
    "calibrate": Job("find the threshold and probabilities of a model on labelled pairs"),
    "study": Job("compare recipes over corpora and seeds"),
    "report": Job("draw the tables and figures of a study"),
    "verify": Job("check that a model, corpus or other folder is whole"),
    "mine": Job("mine pairs of sentences to train on, and label them"),
    "encode": Job("embed a text file, one sentence per line"),
    "search": Job("find the sentences of a file that are similar to a query"),
    "dedup": Job("find near-duplicates in a file"),
    "similarity": Job("score pairs of sentences"),
    "generate": Job("generate sentences similar to a given one"),
    "export": Job("export a model to ONNX, with a script that runs it without torch"),
    "serve": Job("serve embeddings, reranking, similarities and search over HTTP"),
}

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "peft")  # whose versions a record and an issue need
succeeded: list[str] = []  # jobs of this process
LAUNCHED_VARIABLE = "COSENT_LAUNCHED"  # environment variable of a job that --launch has started


def main() -> None:
    """The `cosent` command: `cosent train ...`, the same as `python -m cosent train ...`."""
    job = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if job in ("-h", "--help"):
        print("usage: cosent JOB [--flag value ...]\n")
        for name, described in JOBS.items():
            print(f"  {name:<12}{described.does}")
        print("\n`cosent JOB --help` lists the flags of a job.")
    elif job == "--version":
        print(f"cosent {__version__}", *(f"{name} {version(name)}" for name in PACKAGES), sep="\n")
        print(f"Python {platform.python_version()} on {platform.platform()}")
    else:
        with messages_for_users():
            if job not in JOBS:
                raise InputError(f"There is no job {job!r}.{nearest(job, JOBS)} `cosent --help` lists them.")
            configure_logging()
        let_waiting_threads_sleep()
        del sys.argv[1]
        module, described = import_module(module_of(job)), JOBS[job]
        run(module.main, described.shares_work, module.defaults if described.recipes else None)


def module_of(job: str) -> str:
    """The module of a job: `cosent.jobs.train`."""
    return f"{JOBS[job].package}.{job}"


def arguments_of(job: Callable) -> tuple[type, ...]:
    """The argument classes of a job, from the annotations of its `main`."""
    return tuple(kind for name, kind in get_type_hints(job).items() if name != "return")


def run(job: Callable, shares_work: bool = False, defaults: Callable[[dict], dict] | None = None) -> None:
    """Parses `sys.argv` and runs a job; user errors end in one message and exit status 2.

    Processes that were launched together join their group before the job begins, and only the first one prints.

    Args:
        job: takes an instance of each of its argument classes, and may return an exit status.
        shares_work: as in `Job`.
        defaults: as in `Parser.values`.
    """
    module, argument_classes = sys.modules[job.__module__], arguments_of(job)
    name = module.__spec__.name if module.__spec__ else Path(sys.argv[0]).stem
    succeeded.clear()
    with messages_for_users():
        configure_logging()
        if PARENT_VARIABLE in os.environ:
            end_with_parent(int(os.environ[PARENT_VARIABLE]))
        short = name.rpartition(".")[2]
        program = f"cosent {short}" if short in JOBS and name == module_of(short) else f"python -m {name}"
        help_flags = {"-h", "--help", "--help_all"}.intersection(map(with_underscores, sys.argv))
        recipe = defaults({})["config"] if help_flags and defaults else None
        parser = Parser(
            *argument_classes,
            program=program,
            launches=shares_work,
            all_flags="--help_all" in help_flags,
            defaults=parser_of(*argument_classes).read_recipe(recipe) if recipe else {},
        )
        parser.description = module.__doc__
        values = parser.values(sys.argv[1:], defaults)
        strategy, processes = values.pop("launch", None), values.pop("processes", None)
        if strategy is not None and os.environ.pop(LAUNCHED_VARIABLE, None) is None:
            launch(launch_command(short, sys.argv[1:], strategy, processes))
        arguments = fill(values, *argument_classes)
        check_world_size(shares_work)
        try:
            status = job(*arguments)
        except KeyboardInterrupt:
            if "resume_from_checkpoint" in parser.flags:
                advice = "The same command with --resume_from_checkpoint auto continues from the last checkpoint."
                print(f"\n{advice}", file=sys.stderr)
            raise
    if status:
        sys.exit(status)
    succeeded.append(name)


def configure_logging() -> None:
    """Logs to stderr: progress of cosent, warnings of all libraries; nothing from ranks above 0.

    Only for jobs: a program that imports cosent configures logging itself.
    """
    if int(os.environ.get("RANK", 0)) > 0:
        logging.disable(logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cosent").setLevel(logging.INFO)
    # Without a GPU, DeepSpeed warns as soon as accelerate finds it installed.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())


class Formatter(logging.Formatter):
    """Log format: progress unchanged, everything else prefixed by `warning: ` or `error: `."""

    def format(self, record):
        message = super().format(record)
        return message if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {message}"


def let_waiting_threads_sleep() -> None:
    """Shortens how long threads of libgomp, the OpenMP of PyTorch on Linux, spin, unless the user says otherwise.

    They spin 300,000 times by default, on cores that another program may need: with one busy program next to it, a
    command took up to nine times as long. 1,000 is what libgomp takes itself if its own threads outnumber the cores.
    Read when PyTorch is imported.
    """
    if os.environ.keys().isdisjoint({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def launch_command(job: str, words: list[str], strategy: str, processes: int | None = None) -> list[str]:
    """Command line of a job under `accelerate launch`; `processes` overrides the number in the file."""
    command = [sys.executable, "-m", "cosent.compute.processes", "--config_file", recipe_file(strategy, "accelerate")]
    command += [] if processes is None else ["--num_processes", str(processes)]
    return [*command, "-m", "cosent", job, *words]


def launch(command: list[str]) -> NoReturn:
    """Replaces this process by another command."""
    os.environ[LAUNCHED_VARIABLE] = "1"
    if os.name == "posix":
        os.execv(sys.executable, command)
    sys.exit(subprocess.call(command))


def check_world_size(shares_work: bool) -> None:
    """Joins the process group of a launcher."""
    launched, met = int(os.environ.get("WORLD_SIZE", 1)), 1
    if shares_work and "WORLD_SIZE" in os.environ:
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))
        atexit.register(end_of_rank, state)
        met = state.num_processes
    if launched != met:
        raise InputError(
            f"{launched} processes were launched, but this job sees {met}: each would do all of the work. On a CPU set "
            "ACCELERATE_USE_CPU=true and distributed_type MULTI_GPU; start other jobs without a launcher."
        )


def end_of_rank(state) -> None:
    """Leaves the group at exit; threads of gloo that outlive the interpreter can abort a process whose work is done."""
    state.destroy_process_group()
    if succeeded and not hasattr(sys, "last_type"):  # an unhandled exception keeps its exit status
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
