"""The `cosent` command and the command lines of its jobs.

The YAML of `--config` sets the defaults, flags win, and anything unknown is an error.
"""

import argparse
import logging
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

from cosent import __version__
from cosent.compute.processes import PARENT_VARIABLE, end_with_parent, is_first, let_launcher_end
from cosent.compute.progress_lines import use_progress_lines
from cosent.errors import InputError, messages_for_users
from cosent.flags import Flag, flags_of, nearest, read_values, value_of, words_of

JOBS = {
    "train": "fine-tune an encoder on labelled pairs",
    "distill": "train a small student that embeds and generates sentences",
    "pretrain": "pretrain a small encoder on plain text",
    "evaluate": "score a prepared corpus, a labelled file or tasks of mteb with a trained model",
    "study": "run recipes, variants, corpora and seeds, and keep the results",
    "report": "draw the tables and figures of a study",
    "mine": "make pairs of sentences and label them, to train on",
    "teach": "let a bi-encoder and a cross-encoder teach each other",
    "merge": "make one model of several",
    "encode": "embed a text file, one sentence per line",
    "search": "find the sentences of a file that are similar to a query",
    "dedup": "find near-duplicates in a file",
    "similarity": "score pairs of sentences",
    "generate": "generate sentences similar to a given one",
    "demo": "try models on a page in the browser",
    "publish": "publish a model on the Hub, with its card",
}


def main() -> None:
    """The `cosent` command: `cosent train ...` runs the same job as `python -m cosent.train ...`."""
    job = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if job in ("-h", "--help"):
        print("usage: cosent JOB [--flag value ...]\n")
        for name, line in JOBS.items():
            print(f"  {name:<12}{line}")
        print("\n`cosent JOB --help` lists the flags of a job. Several processes: accelerate launch -m cosent.JOB ...")
    elif job == "--version":
        print(f"cosent {__version__}")
    else:
        with messages_for_users():
            if job in ("prepare", "audit"):  # what somebody with raw files tries first; not part of this package
                raise InputError(f"{job} is a program of its own: python -m data_scripts.{job}. See docs/data.md.")
            if job not in JOBS:
                raise InputError(f"There is no job {job!r}.{nearest(job, JOBS)} `cosent --help` lists them.")
        del sys.argv[1]
        runpy.run_module(f"cosent.{job}", run_name="__main__", alter_sys=True)


def parse(argv: list[str], *argument_classes: type, program: str = "", description: str | None = None) -> tuple:
    """Fills dataclasses from a recipe and flags.

    Args:
        argv: the command line without the program's name; `--config RECIPE.yaml` may be anywhere in it.
        argument_classes: dataclasses whose fields are the valid keys and flags.
        program, description: shown by `--help`.

    Returns:
        One instance per class, in order.

    Raises:
        InputError: no such recipe, not a flat YAML mapping, an unknown key or flag (with the nearest valid one), a flag
            given twice, or a value that is missing or of another type.
    """
    flags = flags_of(*argument_classes)
    words = words_of(argv)
    namespace, unknown = parser(argument_classes, program, description).parse_known_args(words)
    if unknown:
        name = unknown[0].removeprefix("--").split("=")[0]
        is_flag = unknown[0].startswith("--")
        meant = nearest(name, ["config", *flags], "--") if is_flag else " A value stands behind its flag; see --help."
        raise InputError(f"Unknown argument {unknown[0]!r}.{meant} Nothing was run.")
    given = vars(namespace)
    recipe = given.pop("config", None)
    values = read_values(recipe, flags) if recipe else {}
    values |= {name: value_of(flags[name], value, f"--{name}") for name, value in given.items()}
    for flag in flags.values():
        if flag.required and flag.name not in values:
            spelling = flag.name.upper() if flag.positional else f"--{flag.name}"
            raise InputError(f"{spelling} is missing: {flag.field.metadata['help']}")
    try:
        filled = [{name: values[name] for name in flags_of(cls) if name in values} for cls in argument_classes]
        return tuple(cls(**some) for cls, some in zip(argument_classes, filled, strict=True))
    except ValueError as error:  # a combination of values that TrainingArguments refuses
        raise error if isinstance(error, InputError) else InputError(f"{error} Nothing was run.") from error


def parser(
    argument_classes: tuple[type, ...],
    program: str,
    description: str | None = None,
    width: int | None = None,
    library_flags: bool = True,
) -> argparse.ArgumentParser:
    """Builds the parser, which splits a command line into strings by flag; its help groups flags by class.

    Args:
        width: characters per line of `--help`; None for the width of the terminal.
        library_flags: whether to include the flags that transformers.TrainingArguments declares.
    """
    flags = flags_of(*argument_classes)
    names = "".join(f" {'[' * (not f.required)}{f.name.upper()}{' ...' * f.is_list}{']' * (not f.required)}"
                    for f in flags.values() if f.positional)  # fmt: skip
    found = Parser(
        prog=program,
        usage=f"{program} [--config RECIPE.yaml] [--flag value ...]{names}",
        description=description,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=width),
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    found.add_argument("--config", metavar="RECIPE.yaml", help="YAML file of defaults")
    groups = {}
    for flag in sorted(flags.values(), key=lambda flag: is_of_library(flag.owner)):  # ours first
        if is_of_library(flag.owner) and not library_flags:
            continue
        if flag.owner not in groups:
            first_line = (flag.owner.__doc__ or flag.owner.__name__).strip().splitlines()[0].rstrip(".")
            title = f"transformers.{flag.owner.__name__}" if is_of_library(flag.owner) else first_line
            groups[flag.owner] = found.add_argument_group(title)
        add_flag(groups[flag.owner], flag)
    return found


def is_of_library(owner: type) -> bool:
    return owner.__module__.startswith("transformers.")


class Parser(argparse.ArgumentParser):
    """argparse with one-line error messages instead of pages of usage."""

    def error(self, message):
        raise InputError(f"{message[0].upper()}{message[1:]}. Nothing was run; --help lists all flags.")


def add_flag(group, flag: Flag) -> None:
    choices = flag.field.metadata.get("choices")
    shown = (
        "|".join(map(str, choices)) if choices else {bool: "true|false", int: "N", float: "X"}.get(flag.kind, "VALUE")
    )
    help_text = flag.field.metadata.get("help", "")
    if flag.default not in (None, "", []):
        default = flag.default if flag.is_list else [flag.default]
        words = (str(value).lower() if flag.kind is bool else f"{value}" for value in default)
        off = f"; off: --no_{flag.name}" if flag.is_on else ""
        help_text += f" (default: {' '.join(words)}{off})".replace("%", "%%")
    if flag.positional:
        group.add_argument(flag.name, nargs="*" if flag.is_list else "?", metavar=flag.name.upper(), help=help_text)
    elif flag.kind is bool:
        group.add_argument(f"--{flag.name}", nargs="?", const="true", metavar=shown, help=help_text)
        if flag.is_on:
            group.add_argument(
                f"--no_{flag.name}", dest=flag.name, action="store_const", const="false", help=argparse.SUPPRESS
            )
    else:
        group.add_argument(f"--{flag.name}", nargs="+" if flag.is_list else None, metavar=shown, help=help_text)


def run(job: Callable, *argument_classes: type, shares_work: bool = True) -> None:
    """Parses `sys.argv` and runs a job; user errors end in one message and exit status 2.

    Processes that were launched together join their group before the job begins, and only the first one prints.

    Args:
        job: takes an instance of each class, and may return an exit status.
        shares_work: whether processes launched together share out the work; False refuses several.
    """
    module = sys.modules[job.__module__]
    with messages_for_users():
        configure_logging()
        if PARENT_VARIABLE in os.environ:
            end_with_parent(int(os.environ[PARENT_VARIABLE]))
        program = module.__spec__.name.replace(".", " ") if module.__spec__ else Path(sys.argv[0]).name
        arguments = parse(sys.argv[1:], *argument_classes, program=program, description=module.__doc__)
        check_world_size(processes_that_met() if shares_work else 1)
        try:
            status = job(*arguments)
        except KeyboardInterrupt:
            let_launcher_end()
            if "resume_from_checkpoint" in flags_of(*argument_classes):
                print("\nThe same command with --resume_from_checkpoint auto continues from the last checkpoint.",
                      file=sys.stderr)  # fmt: skip
            raise
    if status:
        sys.exit(status)


def configure_logging() -> None:
    """Logs to stderr: progress of cosent, warnings of all libraries; nothing from ranks above 0.

    Progress bars become lines where stderr is not a terminal.

    Only for jobs: a program that imports cosent configures logging itself.
    """
    if not is_first():
        logging.disable(logging.WARNING)
    handler = logging.StreamHandler()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("cosent").setLevel(logging.INFO)
    # Without a GPU, DeepSpeed warns as soon as accelerate finds it installed.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    use_progress_lines()


class Formatter(logging.Formatter):
    """Log format: progress unchanged, everything else prefixed by `warning: ` or `error: `."""

    def format(self, record):
        message = super().format(record)
        return message if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {message}"


def processes_that_met() -> int:
    """Joins the process group and returns its size; 1 for a process that was not launched with others."""
    if "WORLD_SIZE" not in os.environ:
        return 1
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU")).num_processes


def check_world_size(processes: int) -> None:
    """Refuses processes that were launched together, but without a process group.

    Args:
        processes: number of processes that this job sees; 1 for a job that cannot use several.

    Raises:
        InputError: the launcher's WORLD_SIZE is another number.
    """
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != processes:
        raise InputError(
            f"{launched} processes were launched, but this job sees {processes}: each would do all of the work and "
            "write the same files. On a CPU set ACCELERATE_USE_CPU=true and distributed_type MULTI_GPU; start jobs "
            "that do not share out their work with plain python."
        )
