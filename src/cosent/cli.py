"""Command lines of the jobs: the YAML of `--config` gives the defaults, flags win, and anything unknown is an error."""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from pathlib import Path

import yaml

from cosent.errors import InputError, messages_for_users


def parse(argv: list[str], *argument_classes: type) -> tuple:
    """Fills dataclasses from a recipe and flags.

    Args:
        argv: the command line without the program's name; `--config RECIPE.yaml` may stand anywhere in it.
        argument_classes: dataclasses whose fields are the valid keys and flags.

    Returns:
        One instance per class, in order.

    Raises:
        InputError: no such recipe, not a flat YAML mapping, or an unknown key or flag; the nearest valid one is named.
    """
    from transformers import HfArgumentParser  # slow, and not every command needs it

    parser = HfArgumentParser(argument_classes, allow_abbrev=False)
    parser.add_argument("--config", help="recipe that gives the defaults (YAML)")  # for --help; read below
    known = {action.dest: action for action in parser._actions if action.dest not in ("help", "config")}

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config")
    recipe, flags = first.parse_known_args(argv)
    defaults = read_recipe(recipe.config) if recipe.config else {}
    for key, value in defaults.items():
        if key not in known:
            raise InputError(f"{recipe.config}: unknown key {key!r}.{nearest(key, known)} Nothing was run.")
        choices = known[key].choices
        if choices is not None and value not in choices:
            raise InputError(f"{recipe.config}: {key} must be one of {', '.join(map(str, choices))}, got {value!r}.")
        known[key].required = False
    parser.set_defaults(**defaults)

    spellings = {name.lstrip("-").replace("-", "_") for action in parser._actions for name in action.option_strings}
    for flag in flags:  # before argparse complains that the right spelling is missing
        name = flag.lstrip("-").split("=")[0]
        if flag.startswith("--") and name.replace("-", "_") not in spellings:
            raise InputError(f"Unknown argument {flag!r}.{nearest(name, known)} Nothing was run.")
    try:
        *filled, unknown = parser.parse_args_into_dataclasses(flags, return_remaining_strings=True)
    except ValueError as error:  # a combination of values that TrainingArguments refuses
        raise InputError(f"{error} Nothing was run.") from error
    if unknown:
        raise InputError(f"Unknown argument {unknown[0]!r}. Nothing was run.")
    return tuple(filled[: len(argument_classes)])


def read_recipe(path: str) -> dict:
    """Reads a flat YAML mapping; keys that stand twice are an error, since YAML keeps the last in silence."""
    if not Path(path).is_file():
        raise InputError(f"There is no recipe at {path}. The shipped ones are recipes/<tower>/<method>.yaml.")
    try:
        text = Path(path).read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict) or any(isinstance(value, dict) for value in content.values()):
        raise InputError(f"{path}: a recipe is a flat list of `key: value` lines, without nesting.")
    keys = [key.value for key, _ in node.value]
    if len(keys) > len(content):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InputError(f"{path}: the key {twice!r} stands twice. Keep one.")
    return content


def nearest(name: str, known: dict) -> str:
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def run(main: Callable, *argument_classes: type) -> None:
    """Parses `sys.argv` and runs a job; what the user got wrong ends in one message and exit status 2.

    Of several processes that were launched together, all have met before the job begins, and the first one speaks.
    """
    with messages_for_users():
        if int(os.environ.get("RANK", 0)) > 0:
            logging.disable(logging.WARNING)
        arguments = parse(sys.argv[1:], *argument_classes)
        check_world_size(processes_that_met())
        try:
            main(*arguments)
        except KeyboardInterrupt:
            if any(hasattr(given, "resume_from_checkpoint") for given in arguments):
                print("\nThe same command with --resume_from_checkpoint auto goes on from the last checkpoint.",
                      file=sys.stderr)  # fmt: skip
            raise


def option(default, help_text: str, choices=None):
    metadata = {"help": help_text} if choices is None else {"help": help_text, "choices": list(choices)}
    return field(default=default, metadata=metadata)


def refuse_changed(arguments, names: tuple[str, ...], missing: str) -> None:
    """Refuses flags that would do nothing, since the one that they belong to is missing."""
    for flag in fields(arguments):
        default = flag.default if flag.default_factory is MISSING else flag.default_factory()
        if flag.name in names and getattr(arguments, flag.name) != default:
            raise InputError(f"--{flag.name} does nothing here. Add {missing}, or leave it out.")


def processes_that_met() -> int:
    """Number of processes in the group that this one joined; 1 for a process that was started by itself."""
    if "WORLD_SIZE" not in os.environ:
        return 1
    from accelerate import PartialState

    return PartialState().num_processes


def check_world_size(processes: int = 1) -> None:
    """Refuses processes that were launched together and do not know of each other.

    Args:
        processes: how many this job sees; 1 for a job that is not made for more.

    Raises:
        InputError: the launcher's WORLD_SIZE is another number.
    """
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched != processes:
        raise InputError(
            f"{launched} processes were launched, and this job sees {processes}: each would do all of the work and "
            "write the same files. On a CPU set ACCELERATE_USE_CPU=true and distributed_type MULTI_GPU; start jobs "
            "that do not share out their work with plain python."
        )
