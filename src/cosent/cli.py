"""The `cosent` command and the command lines of its jobs.

The YAML of `--config` sets the defaults, flags win, and anything unknown is an error.

Dataclass fields as command-line flags and recipe keys, and parsing of their values.

A field is its own documentation: `corpus: str = option("stsb", "Its help text.")` makes `--corpus lcqmc` and the key
`corpus: lcqmc`. A field of type `list[str]` takes `--corpus lcqmc nli` and the YAML list `[lcqmc, nli]`.

Progress bars as lines where the output is a file or a pipe: no carriage returns, one line every 10%.

All bars of a job are tqdm's: our own, and those of Trainer, `datasets` and other libraries.
"""

import argparse
import difflib
import inspect
import logging
import os
import re
import runpy
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from decimal import Decimal
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

import psutil
import yaml
from tqdm.std import tqdm

from cosent import __version__
from cosent.errors import InputError, messages_for_users

NULL = "tag:yaml.org,2002:null"


def read_yaml(text: str, where: str):
    """Reads YAML whose scalars are text as it is written, or None for null: the flag decides what the text means.

    YAML 1.1 itself reads `no` as false, `010` as 8 and `1:30` as 90.

    Raises:
        InputError: not YAML, or a key that occurs twice, of which YAML silently keeps the last.
    """
    try:
        return _as_written(yaml.compose(text, Loader=yaml.SafeLoader), where)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not YAML: {error}") from error


def _as_written(node: yaml.Node | None, where: str):
    if isinstance(node, yaml.SequenceNode):
        return [_as_written(item, where) for item in node.value]
    if not isinstance(node, yaml.MappingNode):
        return None if node is None or node.tag == NULL else node.value
    found = {}
    for key, value in node.value:
        name = str(key.value)
        if name in found:
            raise InputError(f"{where}: the key {name!r} occurs twice. Keep one.")
        found[name] = _as_written(value, where)
    return found


BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
REQUIRED = MISSING  # default of a field that must be given
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Flag:
    """A field of an arguments dataclass, as a flag of the command line and a key of a recipe."""

    name: str
    kind: type  # type of the value, or of the items of a list: bool, int, float or str
    is_list: bool
    optional: bool  # whether None is a value, which a recipe writes as null
    field: Field
    owner: type  # the class that declares it

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self):
        if self.required:
            return None
        return self.field.default if self.field.default_factory is MISSING else self.field.default_factory()

    @property
    def is_on(self) -> bool:
        """Whether it is a switch that is on by default, so that there is `--no_...` of it."""
        return self.kind is bool and self.default is True

    @property
    def positional(self) -> bool:
        return self.field.metadata.get("positional", False)


def option(default, help_text: str, choices=None, *, positional: bool = False, commas: bool = False):
    """A field of an arguments dataclass.

    Args:
        default: `REQUIRED` for a value that must be given.
        choices: the values that are allowed.
        positional: passed without `--name`; a list takes all such words.
        commas: whether items of a list may contain commas, as sentences do; otherwise a comma is a wrong separator.
    """
    given = {"help": help_text, "choices": choices and list(choices), "positional": positional, "commas": commas}
    metadata = {name: value for name, value in given.items() if value}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def flags_of(*argument_classes: type) -> dict[str, Flag]:
    """The flags of dataclasses by name, in order."""
    found = {}
    for cls in argument_classes:
        hints = get_type_hints(cls)
        for one in fields(cls):
            if one.init:
                owner = next(base for base in cls.__mro__ if one.name in inspect.get_annotations(base))
                found[one.name] = Flag(one.name, *kind_of(hints[one.name]), one, owner)
    return found


def kind_of(hint) -> tuple[type, bool, bool]:
    """Type of a value, whether a field holds a list of them, and whether it may be None.

    Types other than `KINDS` are passed on as text.
    """
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        optional = len(others) < len(get_args(hint))
        hint = others[0] if len(others) == 1 else str
    if get_origin(hint) is list:
        return kind_of(get_args(hint)[0])[0], True, optional
    return (hint if hint in KINDS else str), False, optional


def value_of(flag: Flag, given, where: str):
    """Converts a word of the command line, or a value of YAML as it is written, to a flag's value.

    Args:
        where: spelling of the flag there, for messages.

    Raises:
        InputError: another type, none of the choices, null for a flag that needs a value, or a list separated by
            commas.
    """
    if given is None and flag.optional:
        return None
    if flag.is_list:
        return [item_of(flag, one, where) for one in (given if isinstance(given, list) else [given])]
    if isinstance(given, list):
        raise InputError(f"{where} takes one value, got the list [{', '.join(map(str, given))}].")
    return item_of(flag, given, where)


def item_of(flag: Flag, given, where: str):
    if given is None:
        default = "" if flag.required else f", or leave the line out for the default ({flag.default})"
        raise InputError(f"{where} must be {KINDS[flag.kind]}, got nothing (null). Write a value{default}.")
    text = str(given)
    if flag.is_list and "," in text and not flag.field.metadata.get("commas", False):
        parts = text.split(",")
        right = f"{where} {' '.join(parts)}" if where.startswith("--") else f"a YAML list: [{', '.join(parts)}]"
        raise InputError(f"{where} is a list without commas, got {text!r}. Write {right}.")
    choices = flag.field.metadata.get("choices")
    if choices is not None and text not in map(str, choices):
        raise InputError(f"{where} must be one of {', '.join(map(str, choices))}, got {text!r}.")
    try:
        return BOOLEANS[text.lower()] if flag.kind is bool else flag.kind(text)
    except (KeyError, ValueError) as error:
        raise InputError(f"{where} must be {KINDS[flag.kind]}, got {text!r}.") from error


def words_of(argv: list[str]) -> list[str]:
    """A command line as argparse reads it: `--batch-size=8` as `--batch_size=8`, and `-1e-5` as `-0.00001`.

    Raises:
        InputError: a flag that is given twice, of which argparse silently takes the last.
    """
    flags = list(takewhile(lambda word: word != "--", argv))
    words = [as_decimal(with_underscores(word)) for word in flags]
    given: dict[str, str] = {}
    for word in words:
        if word.startswith("--"):
            spelling = word.partition("=")[0]
            name = spelling.removeprefix("--").removeprefix("no_")
            if name in given:
                first = given[name]
                raise InputError(
                    f"{first} is given twice{f', also as {spelling}' * (spelling != first)}, and one of them would be "
                    "ignored. Give it once; a list takes several values: --flag a b. Nothing was run."
                )
            given[name] = spelling
    return words + argv[len(flags) :]  # behind `--` are sentences


def with_underscores(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("-", "_").replace("__", "--", 1) + equals + value if word.startswith("--") else word


def as_decimal(word: str) -> str:
    """A negative number without an exponent: argparse takes others for flags."""
    return format(Decimal(word), "f") if re.fullmatch(r"-(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,3}", word) else word


def as_words(settings: dict) -> list[str]:
    """Settings as a command line: `{"corpus": ["a", "b"], "seed": 1}` becomes `--corpus a b --seed=1`."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return words


def read_values(recipe: str, flags: dict[str, Flag]) -> dict:
    """Reads the values of a recipe, each converted to the type of its flag."""
    values = {}
    for key, value in read_recipe(recipe).items():
        if key not in flags:
            raise InputError(f"{recipe}: unknown key {key!r}.{nearest(key, flags)} Nothing was run.")
        values[key] = value_of(flags[key], value, f"{recipe}: {key}")
    return values


def read_recipe(path: str) -> dict:
    """Reads a flat YAML mapping, its values as they are written."""
    if not Path(path).is_file():
        raise InputError(f"There is no recipe at {path}. The shipped ones are recipes/<tower>/<method>.yaml.")
    try:
        content = read_yaml(Path(path).read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict) or any(isinstance(value, dict) for value in content.values()):
        raise InputError(f"{path}: a recipe is a flat list of `key: value` lines, without nesting.")
    return content


def nearest(name: str, known, prefix: str = "") -> str:
    """The most similar name, as a question; the one that `name` has the initials of, as `lr`, or is a part of."""
    initials = [one for one in known if "".join(word[:1] for word in one.split("_")) == name]
    wider = [one for one in known if f"_{name}_" in f"_{one}_"]
    matches = sorted(initials, key=len, reverse=True) or difflib.get_close_matches(name, known, n=1) or wider
    return f" Did you mean {prefix + matches[0]!r}?" if matches else ""


def refuse_below_1(arguments, *names: str) -> None:
    """Refuses counts below 1."""
    for name in names:
        if (value := getattr(arguments, name)) < 1:
            raise InputError(f"--{name} must be at least 1, got {value}.")


def refuse_negative(arguments, *names: str) -> None:
    """Refuses negative numbers, and NaN."""
    for name in names:
        if not (value := getattr(arguments, name)) >= 0:
            raise InputError(f"--{name} must not be negative, got {value:g}.")


def refuse_changed(arguments, names: tuple[str, ...], missing: str) -> None:
    """Refuses flags that would do nothing, since the one that they belong to is missing."""
    flags = flags_of(type(arguments))  # type: ignore[arg-type]  # mypy asks instances, not classes, for a hash
    for name in names:
        if getattr(arguments, name) != flags[name].default:
            raise InputError(f"--{name} does nothing here. Add {missing}, or leave it out.")


PARENT_VARIABLE = "COSENT_PARENT"  # environment variable of a launched job: id of the process that it must not outlive
LAUNCHER_PATIENCE = 1.0  # seconds; of several processes, the launcher waits for them in turn
ORPHANED = 1  # exit status of a process whose parent has gone


def is_first() -> bool:
    """Whether this is the first of processes that were launched together, or the only one; before torch is loaded."""
    return int(os.environ.get("RANK", 0)) == 0


def end_with_parent(parent: int, every: float = 1.0) -> None:
    """Ends this process, without cleaning up, soon after another one has ended for whatever reason.

    SIGKILL leaves a process no time to stop its children, and only Linux can have the kernel do it. So a daemon thread
    of the child polls the parent.

    Args:
        parent: process id of the other one.
        every: seconds between two polls.
    """
    try:
        followed = psutil.Process(parent)  # compares start times too: a reused process id is another process
    except psutil.NoSuchProcess:
        os._exit(ORPHANED)
    threading.Thread(target=_end_with, args=(followed, every), name="end_with_parent", daemon=True).start()


def _end_with(followed: psutil.Process, every: float) -> None:
    with suppress(psutil.NoSuchProcess):
        # A zombie has ended too; it only waits for its parent to read its exit status.
        while followed.is_running() and followed.status() != psutil.STATUS_ZOMBIE:
            time.sleep(every)
    os._exit(ORPHANED)


def let_launcher_end() -> None:
    """Waits until `accelerate launch` has printed its traceback of a Ctrl-C, which would bury what is printed here."""
    with suppress(psutil.Error):  # it takes longer, has ended, or belongs to another user
        launcher = psutil.Process().parent()
        if launcher is not None and "accelerate" in " ".join(launcher.cmdline()):
            launcher.wait(LAUNCHER_PATIENCE)


def end_tree(process: subprocess.Popen, patience: float = 20.0) -> None:
    """Ends a running process and all its descendants: terminates them, and kills those left after `patience` seconds.

    Windows cannot ask a process to end, so all are killed at once.
    """
    try:
        started = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    for member in [process, *started]:
        with suppress(psutil.NoSuchProcess):
            member.terminate()
    _, left = psutil.wait_procs(started, timeout=patience)
    for member in left:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    try:
        process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def peak_memory_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 2**20
    if sys.platform == "linux":
        # Not `ru_maxrss`: a child inherits that of the process which started it.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) / 2**10
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


SECONDS = 10.0  # at least, between two lines of a bar: what is done at once gets its last line only
SECONDS_WITHOUT_TOTAL = 60.0

on_terminal, cleared_on_terminal = tqdm.display, tqdm.clear


def use_progress_lines() -> None:
    """Replaces how tqdm displays its bars, in this process; on a terminal they stay as they are.

    Of processes that were launched together, only the first one shows any.
    """
    tqdm.told = None  # tenth and time of the last line of a bar
    tqdm.display, tqdm.clear = display, clear


def display(bar: tqdm, msg: str | None = None, pos: int | None = None) -> bool:
    """`tqdm.display`, which tqdm calls about ten times a second and when a bar is closed."""
    if not is_first():
        bar.leave = False  # no line break when it is closed
        return False
    if bar.fp.isatty():
        return on_terminal(bar, msg, pos)
    if bar.disable:  # about to be closed
        if msg is None:  # and to stay: tqdm adds the line break
            bar.fp.write(line(bar))
        return False
    tenth, now = int(10 * bar.n / bar.total) if bar.total else None, time.monotonic()
    if bar.told is None:
        bar.told = tenth, now
    told, at = bar.told
    pause = SECONDS if bar.total else SECONDS_WITHOUT_TOTAL
    if (tenth is None or tenth not in (told, 10)) and now - at >= pause:
        bar.told = tenth, now
        bar.fp.write(line(bar) + "\n")
        bar.fp.flush()
    return False


def clear(bar: tqdm, nolock: bool = False) -> None:
    """`tqdm.clear`, before a line is written above the bars: lines of a file stay where they are."""
    if is_first() and bar.fp.isatty():
        cleared_on_terminal(bar, nolock)


def line(bar: tqdm) -> str:
    """Description, share, count, time and rate of a bar."""
    return tqdm.format_meter(**bar.format_dict | {"ncols": 0}).strip()


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
