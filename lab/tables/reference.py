"""The public names with their signatures, for docs/reference.md."""

import inspect
from collections.abc import Callable

from transformers import TrainingArguments

import cosent
from cosent.flags import flags_of
from cosent.losses import LOSSES


def reference() -> str:
    """Names that `cosent` exports, then the functions of `cosent.losses` with the names that `--loss` has for them."""
    functions: dict[Callable, list[str]] = {}
    for name, loss in LOSSES.items():
        functions.setdefault(loss.function, []).append(f"`{name}`")
    lines = [
        "## `cosent`",
        "",
        *(entry(getattr(cosent, name)) for name in cosent.__all__),
        "",
        "## `cosent.losses`",
        "",
    ]
    lines += [entry(function, f" ({', '.join(names)})") for function, names in functions.items()]
    return "\n".join(lines)


def entry(thing: Callable, note: str = "") -> str:
    """A list item: a name with its parameters and their defaults, and the first line of its docstring."""
    return f"* **`{thing.__name__}{parameters(thing)}`**{note}: {(inspect.getdoc(thing) or '').splitlines()[0]}"


def parameters(thing: Callable) -> str:
    """The signature without types; of training arguments, those that this project adds or changes."""
    signature = inspect.signature(thing)
    kept = list(signature.parameters.values())
    if isinstance(thing, type) and issubclass(thing, TrainingArguments):
        own = flags_of(thing)
        kept = [one for one in kept if one.name in own and own[one.name].owner.__module__.startswith("cosent.")]
        kept.append(inspect.Parameter("training_arguments", inspect.Parameter.VAR_KEYWORD))
    kept = [one.replace(annotation=inspect.Parameter.empty) for one in kept]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
