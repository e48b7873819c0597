"""Flags `--prompt` and `--prompt_name` of the jobs that read pairs."""

import logging
from dataclasses import dataclass

from cosent.errors import InputError
from cosent.flags import option
from cosent.run import read_record

logger = logging.getLogger(__name__)


@dataclass
class PromptArguments:
    """Prompts: texts in front of the sentences."""

    prompt: list[str] | None = option(
        None, 'Text in front of both sentences, or two: of the first and the second; "" for none; default: that of the '
        "model.", commas=True,
    )  # fmt: skip
    prompt_name: list[str] | None = option(None, "Instead: the name of a prompt of the model, or two names.")

    def __post_init__(self):
        for name in ("prompt", "prompt_name"):
            values = getattr(self, name) or []
            if len(values) > 2:
                raise InputError(
                    f"--{name} takes one value, or two, for the first and the second sentence, got {len(values)}: "
                    f"{', '.join(map(repr, values))}. Put sentences before it, or write --{name}={values[0]!r}."
                )
        check_line_breaks(self.prompt)


@dataclass
class SavedPromptArguments(PromptArguments):
    """What becomes of the prompts after training."""

    save_prompt: bool = option(
        True, "Save the prompts with the model: one becomes its default, two that differ are its query and document."
    )


def check_line_breaks(prompts: list[str] | None) -> None:
    """Refuses prompts in which a shell left `\\n` as two characters.

    Raises:
        InputError: a backslash with an n.
    """
    for prompt in prompts or []:
        if "\\n" in prompt:
            raise InputError(
                f"--prompt {prompt!r} holds a backslash and an n where a line break was probably meant: the model "
                "would read both characters. In a shell write $'Instruct: ...\\nQuery:', in a recipe use double quotes."
            )


def warn_of_other_prompts(model: str, *prompts: str) -> None:
    """Says that a model is served with another prompt than it was trained with, which its `run.json` knows.

    Args:
        model: its folder or Hub id.
        prompts: texts in front of the first and the second sentence of pairs, or one for single sentences.
    """
    record = read_record(model)
    if record is None or (prompts == record.prompts if len(prompts) == 2 else prompts[0] in record.prompts):
        return
    here = described((prompts[0], prompts[-1]))
    logger.warning("%s was trained with %s, and reads %s here.", model, described(record.prompts), here)


def described(prompts: tuple[str, str]) -> str:
    """The prompts of both sentences in words: `the prompt 'query: '`."""
    texts = " and ".join(map(repr, dict.fromkeys(prompts)))
    return f"the prompt{'' if prompts[0] == prompts[1] else 's'} {texts}" if any(prompts) else "no prompt"
