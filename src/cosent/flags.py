"""The fields of a job's dataclasses as flags of a command line and keys of a recipe.

`corpus: str = option("stsb", "Its help.")` is `--corpus lcqmc` on a command line and `corpus: lcqmc` in the YAML of
`--config`. A recipe is read as words in front of the command line: the same parser types both, and later words win. In
a subclass, `corpus: str = "atec"` changes the default alone.
"""

import argparse
import difflib
import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml

from cosent.errors import InputError, reading

# What to take instead of flags of other programs.
OTHER_PROGRAMS = {
    "batch_size": "--per_device_train_batch_size: pairs per device",
    "lr": "--learning_rate",
    "warmup_ratio": "--warmup_steps 0.1: a number below 1 is a share of all steps",
    "train_file": "--corpus, after cosent prepare, which reads the same files",
    "train_data": "--corpus, after cosent prepare, which reads the same files",
    "dataset": "--corpus, after cosent prepare, which reads the same files",
    "query_instruction_for_retrieval": "--prompt 'TEXT' '': in front of queries, and none in front of passages",
    "sentence_pooling_method": "--pooling: cls, mean or lasttoken (FlagEmbedding's last_token)",
    "train_group_size": "cosent prepare, which makes a pair of every negative of a row",
    "mini_batch_size": "--cached_batch_size, the batch that is compared, in parts of --per_device_train_batch_size",
    "task_type": "--tower bi_encoder or cross_encoder",
    "temperature": "--scale, its inverse: 20 for a temperature of 0.05",
    "use_lora": "--use_peft true; without it all weights are trained",
    "no_cuda": "--use_cpu true; CUDA_VISIBLE_DEVICES in the environment chooses a GPU",
    "fsdp": "--launch fsdp, or a file of `accelerate config`",
    "deepspeed": "--launch deepspeed_zero2, or a file of `accelerate config`",
}
# Fields of `TrainingArguments` that are no flags: they would do nothing here, or change which pairs are compared.
NOT_OURS = """
    accelerator_config auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16_full_eval
    dataloader_in_order debug deepspeed do_eval do_predict do_train enable_jit_checkpoint eval_do_concat_batches
    eval_use_gather_object fp16_full_eval fsdp fsdp_config hub_always_push hub_revision hub_strategy include_for_metrics
    label_names label_smoothing_factor length_column_name liger_kernel_config logging_nan_inf_filter
    neftune_noise_alpha parallelism_config prediction_loss_only remove_unused_columns
    restore_callback_states_from_checkpoint use_cache use_liger_kernel
"""
UNSUPPORTED = frozenset(NOT_OURS.split())
# Numbers that libraries would refuse with a trace: seeds of NumPy and ports, from 0 to below these.
BELOW = {"seed": 2**32, "data_seed": 2**32, "limit_seed": 2**32, "port": 2**16}
# Second names of flags: a model may be named as in transformers or as in other jobs.
ALIASES = {"model": "model_name_or_path", "model_name_or_path": "model"}

# The shared flags of training jobs that --help shows, by task; --help_all shows the others too.
TASKS = {
    "Most used": "corpus config model_name_or_path output_dir learning_rate num_train_epochs "
    "per_device_train_batch_size max_length loss seed",
    "Data": "data_dir eval_corpora text limit_train",
    "Model": "tower pooling prompt use_peft",
    "Loss": "scale loss_args",
    "Training": "warmup_steps bf16 cached_batch_size eval_strategy resume_from_checkpoint",
    "Output": "overwrite_output_dir push_to_hub",
}
SHOWN = {name: title for title, names in TASKS.items() for name in names.split()}

# In a wheel inside the package, in a clone at its root.
HERE = Path(__file__).parent
RECIPES = next((folder for folder in (HERE / "recipes", HERE.parents[1] / "recipes") if folder.is_dir()), HERE)

REQUIRED: Any = MISSING  # default of a field that must be given
HIDDEN = argparse.SUPPRESS  # help text of a flag that --help leaves out


def parse(argv: list[str], *argument_classes: type) -> tuple:
    """Fills dataclasses from a command line without the program's name; `--config` may be anywhere in it."""
    return fill(parser_of(*argument_classes).values(argv), *argument_classes)


def fill(values: dict[str, Any], *argument_classes: type) -> tuple:
    """One instance per class, from the values of its fields."""
    for flag in flags_of(*argument_classes).values():
        if flag.required and flag.name not in values:
            spelling = flag.name.upper() if flag.metadata.get("positional") else f"--{flag.name}"
            raise InputError(f"{spelling} is missing: {flag.metadata['help']}")
    for name in BELOW.keys() & values.keys():
        if (value := values[name]) is not None and not 0 <= value < BELOW[name]:
            raise InputError(f"--{name} must be from 0 to {BELOW[name] - 1}, got {value}.")
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


def option(default, help_text: str, choices=None, *, positional: bool = False):
    """A field of an arguments dataclass.

    Args:
        default: `REQUIRED` for a value that must be given.
        choices: the values that are allowed.
        positional: passed without `--name`; a list takes all such words.
    """
    metadata = {"help": help_text, "choices": choices and list(choices), "positional": positional}
    metadata = {name: value for name, value in metadata.items() if value}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@cache
def flags_of(*argument_classes: type) -> dict[str, Flag]:
    """The flags of dataclasses by name, in order, without `UNSUPPORTED` ones; values of other types stay text."""
    flags = {}
    for cls in argument_classes:
        hints = get_type_hints(cls)
        for item in filter(lambda item: item.init, fields(cls)):
            hint, parts = hints[item.name], get_args(hints[item.name])
            optional = type(None) in parts
            if get_origin(hint) in (Union, types.UnionType):
                values = [part for part in parts if part is not type(None)]
                hint = values[0] if len(values) == 1 else str
            is_list, may_be_list = get_origin(hint) is list, {str, list[str]} <= set(parts)
            kind = get_args(hint)[0] if is_list else hint
            kind = kind if kind in (bool, int, float) else str
            default = item.default_factory() if item.default_factory is not MISSING else item.default
            default, required = (None, True) if default is REQUIRED else (default, False)
            bases = [base for base in cls.__mro__ if item.name in inspect.get_annotations(base)]
            declarations = [(base, same.metadata) for base in bases for same in fields(base) if same.name == item.name]
            owner, metadata = next((pair for pair in declarations if pair[1]), declarations[0])
            flag = Flag(item.name, kind, is_list, may_be_list, optional, required, default, metadata, owner)
            if not (flag.is_library and flag.name in UNSUPPORTED):
                flags[flag.name] = flag
    return flags


def boolean(word: str) -> bool:
    """The value of a switch."""
    if word.lower() in ("true", "yes", "on", "1"):
        return True
    if word.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError


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

    def __init__(self, *argument_classes: type, program="", launches=False, all_flags=False, defaults: Mapping = {}):
        self.flags = flags_of(*argument_classes)
        positional = (flag for flag in self.flags.values() if flag.metadata.get("positional"))
        sentences = "".join(f" {flag.name.upper()}{' ...' if flag.is_list else ''}" for flag in positional)
        super().__init__(
            prog=program,
            usage=f"{program}{' [--config RECIPE]' if 'config' in self.flags else ''} [--flag value ...]{sentences}",
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
            alias = ALIASES.get(flag.name)
            names = [
                f"--{name}" for name in (flag.name, alias) if name and (name == flag.name or name not in self.flags)
            ]
            add_flag(groups[title], names, replace(flag, default=defaults.get(flag.name, flag.default)), hidden)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message[0].upper()}{message[1:]}. Nothing was run; see --help.")

    def values(self, argv: list[str], defaults: Callable[[dict], dict] | None = None) -> dict[str, Any]:
        """The values of a command line, and of its recipe where it has none itself.

        Args:
            defaults: the job's own defaults, its recipe among them, for the values of the command line.
        """
        typed = self.read(argv)
        values = {} if defaults is None else defaults(typed)
        recipe = (values | typed).get("config")
        return values | (self.read_recipe(recipe) if recipe else {}) | typed

    def read(self, words: list[str]) -> dict[str, Any]:
        """Parsed values, each of the type of its flag."""
        end = words.index("--") if "--" in words else len(words)  # behind `--` are sentences
        namespace, unknown = self.parse_known_args([*map(with_underscores, words[:end]), *words[end:]])
        if unknown:
            names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            faults = [f"Unknown argument {name!r}.{self.meant(name[2:], '--')}" for name in names]
            faults = faults or [f"Unknown argument {unknown[0]!r}. A value stands behind its flag."]
            raise InputError(f"{' '.join(faults)} Nothing was run; see --help.")
        values = vars(namespace)
        for name in [flag.name for flag in self.flags.values() if flag.may_be_list and flag.name in values]:
            values[name] = values[name] if len(values[name]) > 1 else values[name][0]
        return values

    def meant(self, name: str, prefix: str = "") -> str:
        """Advice on an unknown flag: another name in a training job, or the `nearest` flag."""
        if "learning_rate" in self.flags and name in OTHER_PROGRAMS:
            return f" Take {OTHER_PROGRAMS[name]}."
        if "learning_rate" in self.flags and name in UNSUPPORTED:
            return " Trainings here do not support it: leave it out."
        if prefix and name in self.flags:
            return " Give its value alone, without the name."
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
                raise InputError(f"{where}: unknown key {key!r}.{self.meant(str(key))} Nothing was run.")
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


def add_flag(group, names: list[str], flag: Flag, hidden: bool) -> None:
    """Adds a flag with its names to a parser's group, and `--no_NAME` of a switch that is on by default."""
    metadata, default = flag.metadata, flag.default
    choices, help_text = metadata.get("choices"), HIDDEN if hidden else metadata.get("help", "")
    negated = flag.kind is bool and default is not False
    if default not in (None, "", []) and help_text != HIDDEN:
        words = " ".join(map(str, default)) if flag.is_list else str(default).lower() if negated else str(default)
        help_text += f" (default: {words}{f'; off: --no_{flag.name}' if negated else ''})".replace("%", "%%")
    options = {"type": boolean if flag.kind is bool else flag.kind, "choices": choices, "help": help_text}
    metavars = {bool: "true|false", int: "N", float: "X", str: "VALUE"}
    options["metavar"] = "|".join(map(str, choices)) if choices else metavars[flag.kind]
    if metadata.get("positional"):
        options["metavar"] = flag.name.upper()
        group.add_argument(flag.name, nargs="*" if flag.is_list else "?", **options)
    elif flag.kind is bool:
        group.add_argument(*names, dest=flag.name, nargs="?", const=True, **options)
        if negated:
            group.add_argument(f"--no_{flag.name}", dest=flag.name, nargs=0, const=False, help=HIDDEN)
    else:
        several = "+" if flag.is_list or flag.may_be_list else None
        group.add_argument(*names, dest=flag.name, nargs=several, **options)


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
            if keys.count(key.value) > 1:  # YAML silently keeps the last
                message = f"the key {key.value!r} occurs twice"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
        return super().construct_mapping(node, deep)


NULL = "tag:yaml.org,2002:null"
AsWritten.add_implicit_resolver(NULL, re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
AsWritten.add_constructor(NULL, lambda loader, node: None)


def read_yaml(text: str, where: str) -> Any:
    """Reads YAML as it is written: a flag decides what its text means."""
    with reading(where, advice="Write it as YAML."):
        return yaml.load(text, Loader=AsWritten)


def read_yaml_file(file: str) -> Any:
    """Reads a YAML file as it is written."""
    with reading(file, advice="Write it as YAML, saved as UTF-8."):
        return read_yaml(Path(file).read_text(encoding="utf-8"), file)


@cache
def parser_of(*argument_classes: type) -> "Parser":
    """The parser of some classes; one with the flags of a training is slow to make."""
    return Parser(*argument_classes)


def recipe_file(name: str, folder: str = "*") -> str:
    """The file of a recipe: a path, a place in `recipes/`, or the bare name of a shipped one.

    If several folders have a recipe of that name, the bi-encoder's is taken.

    Args:
        folder: the folder of `recipes/` to look for bare names in.
    """
    if Path(name).is_file():
        return name
    below = name.replace("\\", "/").removeprefix("recipes/").removesuffix(".yaml") + ".yaml"
    files = [file for place in (RECIPES, *sorted(RECIPES.glob(folder))) if (file := place / below).is_file()]
    if not files:
        shipped = [file.stem for file in RECIPES.glob(f"{folder}/*.yaml")]
        raise InputError(f"There is no recipe at {name}.{nearest(Path(below).stem, shipped)} Shipped ones: {RECIPES}.")
    return str(files[0])


def nearest(name: str, names, prefix: str = "") -> str:
    """The most similar of some names as a question, or one with this word in it."""
    matches = difflib.get_close_matches(name, names, n=1) or [other for other in names if f"_{name}_" in f"_{other}_"]
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
    """Refuses flags that have no effect without another one."""
    flags = flags_of(type(arguments))  # type: ignore[arg-type]  # mypy asks instances, not classes, for a hash
    for name in names:
        if getattr(arguments, name) != flags[name].default:
            raise InputError(f"--{name} has no effect without {missing}.")
