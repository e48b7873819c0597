"""The `cosent` command, and the one parser of all jobs.

The fields of a job's dataclasses are its flags and the keys of its recipes: `corpus: str = option("stsb", "Its help.")`
is `--corpus lcqmc` on a command line and `corpus: lcqmc` in the YAML of `--config`. A recipe is read as words in front
of the command line: the same parser types both, and later words win. In a subclass, `corpus: str = "atec"` changes the
default alone.
"""

import argparse
import atexit
import difflib
import inspect
import io
import logging
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

import yaml

from cosent import __version__
from cosent.compute.processes import PARENT_VARIABLE, end_with_parent
from cosent.errors import InputError, messages_for_users, reading

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A job of the command: `main` of a module, whose annotations are its argument classes.

    Args:
        does: what it does, for `cosent --help`.
        shares_work: whether processes launched together share out the work; False refuses several.
        recipes: whether it takes --config, of which its module's `defaults` name one.
        package: of its module, which has its name.
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
    "evaluate": Job("score a model on a corpus, a labelled file, a search task or minimal pairs", shares_work=True),
    "calibrate": Job("find the threshold and probabilities of a model on labelled pairs"),
    "study": Job("compare recipes over corpora and seeds"),
    "report": Job("draw the tables and figures of a study"),
    "check": Job("check that other software gives the vectors or scores of a model, and name the mistake"),
    "verify": Job("check that a model, corpus or other folder is whole"),
    "mine": Job("mine pairs of sentences to train on, and label them", shares_work=True),
    "merge": Job("average several models, or shorten the vectors of one"),
    "encode": Job("embed a text file, one sentence per line", shares_work=True),
    "search": Job("find the sentences of a file that are similar to a query"),
    "dedup": Job("find near-duplicates in a file"),
    "similarity": Job("score pairs of sentences"),
    "generate": Job("generate sentences similar to a given one"),
    "export": Job("export a model to ONNX or OpenVINO, with a script that runs it"),
    "serve": Job("serve embeddings, reranking, similarities and search over HTTP"),
    "demo": Job("try models on a page in the browser"),
}

# What to do instead of flags of other programs, of other versions of transformers, and of `TrainingArguments` that no
# training job has: message -> names.
INSTEAD = {
    "Take --per_device_train_batch_size: pairs per device.": (
        "batch_size train_batch_size per_gpu_train_batch_size per_device_batch_size"
    ),
    "Take --per_device_eval_batch_size: pairs per device.": "eval_batch_size per_gpu_eval_batch_size",
    "Take --num_train_epochs.": "epochs num_epochs n_epochs",
    "Take --learning_rate.": "lr",
    "Take --max_length: tokens of a sentence, or of both of a cross-encoder's pair.": (
        "max_seq_length max_seq_len max_len query_max_len passage_max_len"
    ),
    "Take --warmup_steps 0.1: a number below 1 is a share of all steps.": "warmup_ratio warmup_proportion",
    "Take --eval_strategy: no, steps or epoch.": "evaluation_strategy",
    "Take --eval_steps with --eval_strategy steps --save_strategy steps.": "evaluation_steps",
    "Take --model_name_or_path.": "model model_name",
    "Take --corpus, after cosent prepare, which reads the same files.": (
        "train_file train_data dataset_name dataset val_dataset valid_file eval_data test_file data_path"
    ),
    "Take --validation_share of cosent prepare.": "split_dataset_ratio dev_ratio",
    "Take --prompt 'TEXT' '': in front of queries, and none in front of passages.": (
        "query_instruction_for_retrieval query_instruction passage_instruction_for_retrieval"
    ),
    "Take --pooling: cls, mean or lasttoken (FlagEmbedding's last_token).": (
        "sentence_pooling_method pooling_method pooling_mode pooler_type encoder_type"
    ),
    "Scores are cosines, whatever the length of the vectors: leave it out; `cosent encode --normalize` scales them.": (
        "normalize_embeddings normalized"
    ),
    "Take --loss cosent_in_batch or infonce: negatives are all other texts of the batch, of all processes.": (
        "negatives_cross_device use_inbatch_neg in_batch_negatives gather_across_devices"
    ),
    "Every negative of a row becomes a pair in cosent prepare: leave it out.": "train_group_size num_negatives",
    "Take --loss cosent: pos_scores and neg_scores are labels to it.": "knowledge_distillation kd_loss_type",
    "Every batch holds pairs of one corpus: leave it out.": "same_dataset_within_batch small_threshold drop_threshold",
    "Take --cached_batch_size, the batch that is compared, with --cached_part_size, the part in memory.": (
        "sub_batch_size mini_batch_size"
    ),
    "Take --tower bi_encoder (text2vec's cosent, ms-swift's embedding) or cross_encoder (reranker).": (
        "task_type model_arch"
    ),
    "Take --loss; --help lists them.": "loss_type loss_fn",
    "Take --use_peft true for LoRA; without it all weights are trained.": "train_type tuner_type use_lora",
    "Take --lora_r.": "lora_rank",
    "Take --lora_target_modules.": "target_modules",
    "The folder of the model says it: leave it out.": "model_type tokenizer_name config_name template",
    "Set HF_HOME in the environment.": "cache_dir cache_path",
    "Take --scale, its inverse: 20 for a temperature of 0.05, 50 for FlagEmbedding's 0.02.": "temperature",
    "Take --use_cpu true for the CPU; CUDA_VISIBLE_DEVICES in the environment chooses a GPU.": "no_cuda device",
    "Take --bf16 true to compute in bfloat16; weights keep float32.": "torch_dtype dtype bf16_full_eval fp16_full_eval",
    "Take --optim adafactor.": "adafactor",
    "Set TENSORBOARD_LOGGING_DIR in the environment; the default is a folder in --output_dir.": "logging_dir",
    "Take --launch fsdp, or a file of `accelerate config`.": "fsdp fsdp_config",
    "Take --launch deepspeed_zero2, or a file of `accelerate config`.": "deepspeed",
    "Take --launch.": "parallelism_config",
    "Take --cached_part_size auto, which keeps the batch that is compared.": "auto_find_batch_size",
    "Weights are always saved as safetensors: leave it out.": "save_safetensors",
    "Pairs of similar length would be compared only with one another, and packing needs no padding: leave it out.": (
        "group_by_length length_column_name"
    ),
    "Its settings change which pairs are compared: leave it out.": "accelerator_config",
    "Every run trains, validates and tests; --eval_strategy no and --skip_test true leave that out.": (
        "do_train do_eval do_predict"
    ),
    "Its noise depends on the length of a row, which here holds many sentences: leave it out.": "neftune_noise_alpha",
    "It is for models that generate: leave it out.": "use_liger_kernel liger_kernel_config use_cache",
    "Metrics are always computed from the scores of all pairs: leave it out.": (
        "prediction_loss_only include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object"
    ),
    "A prepared corpus has the columns of every run: leave it out.": "remove_unused_columns label_names",
    "No loss here is a mean over tokens: leave it out.": "average_tokens_across_devices",
    "A loss that is not finite always ends the run: leave it out.": "logging_nan_inf_filter debug",
    "The order of the pairs would depend on the speed of the workers: leave it out.": "dataloader_in_order",
    "What callbacks here have counted is always restored: leave it out.": "restore_callback_states_from_checkpoint",
    "Take --save_strategy steps --save_steps N, and --resume_from_checkpoint auto.": "enable_jit_checkpoint",
    "--push_to_hub publishes once, at the end: leave it out.": "hub_strategy hub_always_push hub_revision",
}
ELSEWHERE = {name: message for message, names in INSTEAD.items() for name in names.split()}

# The shared flags of training jobs that --help shows, by task; --help_all shows the others too.
TASKS = {
    "Most used": "corpus config model_name_or_path output_dir learning_rate num_train_epochs "
    "per_device_train_batch_size max_length loss seed",
    "Data": "data_dir eval_corpora text limit_train",
    "Model": "tower pooling prompt use_peft",
    "Loss": "scale loss_args",
    "Training": "warmup_steps bf16 cached_batch_size eval_strategy resume_from_checkpoint dry_run",
    "Output": "overwrite_output_dir push_to_hub",
}
SHOWN = {name: title for title, names in TASKS.items() for name in names.split()}

# In a wheel inside the package, in a clone at its root.
HERE = Path(__file__).parent
RECIPES = next((folder for folder in (HERE / "recipes", HERE.parents[1] / "recipes") if folder.is_dir()), HERE)

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "peft")  # whose versions a record and an issue need
REQUIRED: Any = MISSING  # default of a field that must be given
HIDDEN = argparse.SUPPRESS  # help text of a flag that --help leaves out
succeeded: list[str] = []  # jobs of this process
LAUNCHED_VARIABLE = "COSENT_LAUNCHED"  # environment variable of a job that --launch has started


def main() -> None:
    """The `cosent` command: `cosent train ...`, the same as `python -m cosent train ...`."""
    mend_streams()
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
            cache_home()  # before libraries are imported
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
        quiet_bars()
        configure_logging()
        cache_home()
        if PARENT_VARIABLE in os.environ:
            end_with_parent(int(os.environ[PARENT_VARIABLE]))
        short = name.rpartition(".")[2]
        program = f"cosent {short}" if short in JOBS and name == module_of(short) else f"python -m {name}"
        asked = {"-h", "--help", "--help_all"}.intersection(map(with_underscores, sys.argv))
        usual = parser_of(*argument_classes).read_recipe(defaults({})["config"]) if asked and defaults else {}
        options: dict[str, Any] = {"launches": shares_work, "all_flags": "--help_all" in asked, "usual": usual}
        parser = Parser(*argument_classes, program=program, **options)
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


def parse(argv: list[str], *argument_classes: type) -> tuple:
    """Fills dataclasses from a command line without the program's name; `--config` may be anywhere in it."""
    return fill(Parser(*argument_classes).values(argv), *argument_classes)


def fill(values: dict[str, Any], *argument_classes: type) -> tuple:
    """One instance per class, from the values of its fields."""
    for flag in flags_of(*argument_classes).values():
        if flag.required and flag.name not in values:
            spelling = flag.name.upper() if flag.metadata.get("positional") else f"--{flag.name}"
            raise InputError(f"{spelling} is missing: {flag.metadata['help']}")
    try:
        return tuple(
            cls(**{name: values[name] for name in flags_of(cls) if name in values}) for cls in argument_classes
        )
    except ValueError as error:  # a combination of values that TrainingArguments refuses
        raise error if isinstance(error, InputError) else InputError(str(error)) from error


@dataclass(frozen=True)
class Flag:
    """A field of an arguments dataclass, as a flag of the command line and a key of a recipe."""

    name: str
    kind: type  # of the value, or of the items of a list: bool, int, float or str
    is_list: bool
    may_be_list: bool  # one word is a value, several are a list: `str | list[str]`
    optional: bool  # whether None is a value, which a recipe writes as null
    required: bool
    default: Any
    metadata: Mapping[str, Any]
    owner: type  # the class that declares it

    @property
    def is_library(self) -> bool:
        """Whether transformers declares it."""
        return self.owner.__module__.startswith("transformers.")


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
    """The flags of dataclasses by name, in order; values of other types than those of `Flag` stay text.

    Those of `TrainingArguments` that are in `ELSEWHERE` are left out.
    """
    found = {}
    for cls in argument_classes:
        hints = get_type_hints(cls)
        for one in filter(lambda one: one.init, fields(cls)):
            hint, parts = hints[one.name], get_args(hints[one.name])
            optional = type(None) in parts
            if get_origin(hint) in (Union, types.UnionType):
                others = [part for part in parts if part is not type(None)]
                hint = others[0] if len(others) == 1 else str
            is_list, may_be_list = get_origin(hint) is list, {str, list[str]} <= set(parts)
            kind = get_args(hint)[0] if is_list else hint
            kind = kind if kind in (bool, int, float) else str
            made = one.default_factory() if one.default_factory is not MISSING else one.default
            default, required = (None, True) if made is REQUIRED else (made, False)
            declared = [base for base in cls.__mro__ if one.name in inspect.get_annotations(base)]
            described = [(base, same.metadata) for base in declared for same in fields(base) if same.name == one.name]
            owner, metadata = next((pair for pair in described if pair[1]), described[0])  # else only a new default
            flag = Flag(one.name, kind, is_list, may_be_list, optional, required, default, metadata, owner)
            if not (flag.is_library and flag.name in ELSEWHERE):
                found[flag.name] = flag
    return found


def boolean(word: str) -> bool:
    """The value of a switch."""
    if word.lower() in ("true", "yes", "on", "1"):
        return True
    if word.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError


def without_commas(word: str) -> str:
    """An item of a list, without the commas of other programs."""
    if "," in word:
        raise argparse.ArgumentTypeError(f"a list is separated by spaces: {word.replace(',', ' ')}, got {word!r}")
    return word


class Once(argparse.Action):
    """Stores a value, and refuses a repeated flag; argparse would silently take the last."""

    def __call__(self, parser, namespace, values, option_string=None):
        if self.dest in vars(namespace):
            parser.error(f"{option_string} is given twice; a list takes several values: --flag a b")
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)


class Parser(argparse.ArgumentParser):
    """Parser of command lines and recipes, with types from the fields of dataclasses.

    transformers.HfArgumentParser does so too, but importing it takes longer than light jobs need in all.
    """

    def __init__(self, *argument_classes: type, program="", launches=False, all_flags=False, usual: Mapping = {}):
        self.flags = flags_of(*argument_classes)
        positional = (flag for flag in self.flags.values() if flag.metadata.get("positional"))
        names = "".join(f" {flag.name.upper()}{' ...' if flag.is_list else ''}" for flag in positional)
        super().__init__(
            prog=program,
            usage=f"{program}{' [--config RECIPE]' if 'config' in self.flags else ''} [--flag value ...]{names}",
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=30),
            allow_abbrev=False,
            argument_default=argparse.SUPPRESS,
        )
        self._negative_number_matcher = re.compile(r"-\.?\d")  # as in Python 3.14: -1e-5 is no flag either
        self.register("action", None, Once)
        if launches:
            strategy = "Run in several processes: ddp, fsdp, deepspeed_zero2, or an accelerate config file."
            self.add_argument("--launch", metavar="STRATEGY", help=strategy)
            self.add_argument("--processes", type=int, metavar="N", help="Number of processes; default: from the file.")
        trains = "learning_rate" in self.flags
        self.add_argument("--help_all", action="help", help="Show all flags, and exit." if trains else HIDDEN)
        shown = {} if all_flags or not trains else SHOWN
        place = {name: number for number, name in enumerate(shown)}
        groups: dict[str, Any] = {}  # by the title that classes may share
        for flag in sorted(self.flags.values(), key=lambda flag: (place.get(flag.name, len(place)), flag.is_library)):
            title = (flag.owner.__doc__ or flag.owner.__name__).strip().splitlines()[0].rstrip(".")
            title = shown.get(flag.name, "Flags of transformers' Trainer" if flag.is_library else title)
            if title not in groups:
                groups[title] = self.add_argument_group(title)
            shared = flag.is_library or flag.owner.__module__.startswith(("cosent.training.", "cosent.models."))
            hidden = bool(shown) and shared and flag.name not in shown
            add_flag(groups[title], replace(flag, default=usual.get(flag.name, flag.default)), hidden)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].upper()}{message[1:]}. Nothing was run; see --help.")

    def values(self, argv: list[str], defaults: Callable[[dict], dict] | None = None) -> dict[str, Any]:
        """The values of a command line, and of its recipe where it has none itself.

        Args:
            defaults: of the job, by the values of the command line: its recipe among others.
        """
        given = self.read(argv)
        found = {} if defaults is None else defaults(given)
        recipe = (found | given).get("config")
        return found | (self.read_recipe(recipe) if recipe else {}) | given

    def read(self, words: list[str]) -> dict[str, Any]:
        """Parsed values, each of the type of its flag."""
        end = words.index("--") if "--" in words else len(words)  # behind `--` are sentences
        namespace, unknown = self.parse_known_args([*map(with_underscores, words[:end]), *words[end:]])
        if unknown:
            name = unknown[0].removeprefix("--").split("=")[0]
            is_flag = unknown[0].startswith("--")
            meant = self.meant(name, "--") if is_flag else " A value stands behind its flag."
            raise InputError(f"Unknown argument {unknown[0]!r}.{meant} Nothing was run; see --help.")
        found = vars(namespace)
        for name in [flag.name for flag in self.flags.values() if flag.may_be_list and flag.name in found]:
            found[name] = found[name] if len(found[name]) > 1 else found[name][0]
        return found

    def meant(self, name: str, prefix: str = "") -> str:
        """Advice on an unknown flag: the message of `ELSEWHERE` in a training job, or the `nearest` flag."""
        if name in ELSEWHERE and "learning_rate" in self.flags:
            return f" {ELSEWHERE[name]}"
        return nearest(name, self.flags, prefix)

    def read_recipe(self, name: str) -> dict[str, Any]:
        """The values of a recipe; see `recipe_file`."""
        file = recipe_file(name)
        return self.read_mapping(read_yaml_file(file), file)

    def read_mapping(self, settings: Any, where: str) -> dict[str, Any]:
        """The values of a flat mapping, as `read_yaml` gives it."""
        if not isinstance(settings, dict):
            raise InputError(f"{where}: expected a flat list of `key: value` lines.")
        for key, value in settings.items():
            if key not in self.flags or key == "config":
                raise InputError(f"{where}: unknown key {key!r}.{self.meant(key)} Nothing was run.")
            empty, items = value is None and self.flags[key].optional, value if isinstance(value, list) else [value]
            if not empty and not all(isinstance(item, str) for item in items):
                raise InputError(f"{where}: {key} takes a value or a flat list of values, got {value}.")
            if isinstance(value, list) and not (self.flags[key].is_list or self.flags[key].may_be_list):
                raise InputError(f"{where}: {key} takes one value, got the list [{', '.join(value)}].")
        try:
            words = as_words({key: value for key, value in settings.items() if value is not None})
            return self.read(words) | {key: None for key, value in settings.items() if value is None}
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def add_flag(group, flag: Flag, hidden: bool) -> None:
    """Adds a flag to a parser's group, and `--no_NAME` of a switch that is on by default."""
    metadata, default = flag.metadata, flag.default
    choices, help_text = metadata.get("choices"), HIDDEN if hidden else metadata.get("help", "")
    negated = flag.kind is bool and default is not False
    if default not in (None, "", []) and help_text != HIDDEN:
        words = " ".join(map(str, default)) if flag.is_list else str(default).lower() if negated else str(default)
        help_text += f" (default: {words}{f'; off: --no_{flag.name}' if negated else ''})".replace("%", "%%")
    kind: Callable[[str], Any] = boolean if flag.kind is bool else flag.kind
    if flag.is_list and kind is str and not metadata.get("commas"):
        kind = without_commas
    shown = {bool: "true|false", int: "N", float: "X", str: "VALUE"}[flag.kind]
    options = {"type": kind, "choices": choices, "help": help_text}
    options["metavar"] = "|".join(map(str, choices)) if choices else shown
    if metadata.get("positional"):
        options["metavar"] = flag.name.upper()
        group.add_argument(flag.name, nargs="*" if flag.is_list else "?", **options)
    elif flag.kind is bool:
        group.add_argument(f"--{flag.name}", nargs="?", const=True, **options)
        if negated:
            group.add_argument(f"--no_{flag.name}", dest=flag.name, nargs=0, const=False, help=HIDDEN)
    else:
        group.add_argument(f"--{flag.name}", nargs="+" if flag.is_list or flag.may_be_list else None, **options)


def with_underscores(word: str) -> str:
    """`--batch-size=8` as `--batch_size=8`."""
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value if word.startswith("--") else word


def as_words(settings: dict) -> list[str]:
    """Settings as a command line: `{"corpus": ["a", "b"], "seed": 1}` becomes `--corpus a b --seed=1`."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    return words


class AsWritten(yaml.BaseLoader):
    """YAML whose scalars are text, or None for null: YAML 1.1 itself reads `no` as false, `010` as 8, `1:30` as 90."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            is_text = isinstance(key, yaml.ScalarNode) and key.tag != NULL
            if not is_text or keys.count(key.value) > 1:  # YAML silently keeps the last
                message = f"the key {key.value!r} occurs twice" if is_text else "this key is not text"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        return super().construct_mapping(node, deep)


NULL = "tag:yaml.org,2002:null"
AsWritten.add_implicit_resolver(NULL, re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
AsWritten.add_constructor(NULL, lambda loader, node: None)


def read_yaml(text: str, where: str) -> Any:
    """Reads YAML as it is written: a flag decides what its text means."""
    with reading(where, yaml.YAMLError, advice="Write it as YAML."):
        return yaml.load(text, Loader=AsWritten)


def read_yaml_file(file: str) -> Any:
    with reading(file, advice="Save it as UTF-8."):
        text = Path(file).read_text(encoding="utf-8")
    return read_yaml(text, file)


@cache
def parser_of(*argument_classes: type) -> "Parser":
    """The parser of some classes, for recipes that no command line names."""
    return Parser(*argument_classes)


def recipe_file(name: str, folder: str = "*") -> str:
    """The file of a recipe: its path, or that of a shipped one by its place in `recipes/` or by its bare name.

    Of a name in several folders, the bi-encoder's is meant.

    Args:
        folder: the folder of `recipes/` to look for bare names in.
    """
    if Path(name).is_file():
        return name
    below = name.replace("\\", "/").removeprefix("recipes/").removesuffix(".yaml") + ".yaml"
    places = [RECIPES, *sorted(RECIPES.glob(folder))]
    found = [place / below for place in places if (place / below).is_file()]
    if not found:
        known = [file.stem for file in RECIPES.glob(f"{folder}/*.yaml")]
        raise InputError(f"There is no recipe at {name}.{nearest(Path(below).stem, known)} Shipped ones: {RECIPES}.")
    if len(found) > 1 and found[0].parent.name != "bi_encoder":
        both = " and ".join(f"{file.parent.name}/{file.stem}" for file in found)
        raise InputError(f"{name} is the name of {both}. Name one of them.")
    return str(found[0])


def nearest(name: str, known, prefix: str = "") -> str:
    """The most similar name as a question, or one with these initials (`lr`), or one that contains the word."""
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
    """Refuses flags that have no effect without another one, which is missing."""
    flags = flags_of(type(arguments))  # type: ignore[arg-type]  # mypy asks instances, not classes, for a hash
    for name in names:
        if getattr(arguments, name) != flags[name].default:
            raise InputError(f"--{name} has no effect without {missing}.")


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


def quiet_bars() -> None:
    """Lets progress bars write lines where stderr is no terminal: one a tenth, at most one in TQDM_MININTERVAL, 10 s.

    tqdm, which all libraries use, has no setting for that: it would move the cursor.
    """
    if sys.stderr.isatty():
        return
    from tqdm import tqdm

    interval = float(os.environ.get("TQDM_MININTERVAL", 10))
    written: WeakKeyDictionary[tqdm, tuple[float, float]] = WeakKeyDictionary()  # tenths and seconds
    end = tqdm.close

    def display(bar: tqdm, msg: str | None = None, pos: int | None = None) -> None:
        tenths, seconds = written.get(bar, (0.0, 0.0))
        now, elapsed = (10 * bar.n // bar.total if bar.total else bar.n), bar.format_dict["elapsed"]
        if msg is None and now != tenths and elapsed - seconds >= interval:
            written[bar] = now, elapsed
            bar.fp.write(f"{bar}\n")

    def close(bar: tqdm) -> None:
        bar.delay = math.inf  # as of a bar that was never shown: nothing to clean up
        end(bar)

    tqdm.display, tqdm.clear, tqdm.close = display, lambda bar, nolock=False: None, close


def mend_streams() -> None:
    """Opens closed standard streams, writes what an encoding lacks as `\\u597d`, and reads arguments as UTF-8."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # else the next file would be what is printed to
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "r+" if not number else "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        if number and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.getfilesystemencoding() != "utf-8":
        sys.argv[:] = [os.fsencode(word).decode("utf-8", "surrogateescape") for word in sys.argv]


def let_waiting_threads_sleep() -> None:
    """Shortens how long threads of libgomp, the OpenMP of PyTorch on Linux, spin, unless the user says otherwise.

    They spin 300,000 times by default, on cores that another program may need: with one busy program next to it, a
    command took up to nine times as long. 1,000 is what libgomp takes itself if its own threads outnumber the cores.
    Read when PyTorch is imported.
    """
    if os.environ.keys().isdisjoint({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def cache_home() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache; where it cannot be written, with a warning, a temporary folder of this user.

    That becomes $XDG_CACHE_HOME, for the libraries that are imported later.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(given or Path.home() / ".cache").absolute()
        (home / "cosent").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home / "cosent"):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        hub = Path(os.environ.get("HF_HOME", Path(given or "~/.cache", "huggingface")), "hub")
        home = Path(tempfile.gettempdir(), f"cosent-{os.getuid()}" if os.name == "posix" else "cosent")
        home.mkdir(mode=0o700, exist_ok=True)
        if os.name == "posix" and home.lstat().st_uid != os.getuid():
            raise InputError(f"{home} is another user's. Set XDG_CACHE_HOME to a folder of your own.") from error
        logger.warning("There is no folder for caches (%s): they are in %s. Set XDG_CACHE_HOME.", error, home)
        os.environ["XDG_CACHE_HOME"] = str(home)
        os.environ.setdefault("HF_HUB_CACHE", str(hub))  # models that are there can still be read
    if given == "":  # libraries would take the current folder
        os.environ["XDG_CACHE_HOME"] = str(home)
    return home


def launch_command(job: str, words: list[str], strategy: str, processes: int | None = None) -> list[str]:
    """Command line of a job under `accelerate launch`; `processes` overrides the number in the file."""
    command = [sys.executable, "-m", "cosent.compute.launcher", "--config_file", recipe_file(strategy, "accelerate")]
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
