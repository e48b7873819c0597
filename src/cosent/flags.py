"""Dataclass fields as command-line flags and recipe keys, and parsing of their values.

A field is its own documentation: `corpus: str = option("stsb", "Its help text.")` makes `--corpus lcqmc` and the key
`corpus: lcqmc`. A field of type `list[str]` takes `--corpus lcqmc nli` and the YAML list `[lcqmc, nli]`.
"""

import difflib
import inspect
import re
import types
from dataclasses import MISSING, Field, dataclass, field, fields
from decimal import Decimal
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from cosent.errors import InputError
from cosent.yaml_text import read_yaml

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
