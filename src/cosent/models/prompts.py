"""`Prompts` of a model: texts put in front of every sentence, kept in `config_sentence_transformers.json`.

A folder whose `1_Pooling/config.json` leaves the tokens of a prompt out of the pooling is refused, see `layout.py`.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from cosent.errors import InputError
from cosent.flags import option
from cosent.record import read_record

DEFAULT, PROMPT_SIDES = "default", ("query", "document")  # names of prompts that a model was trained with
DOCUMENT_NAMES = ("document", "passage", "corpus")


@dataclass(frozen=True)
class Prompts:
    """Texts that a model puts in front of its sentences (`query: `, an instruction), as sentence-transformers does."""

    texts: dict[str, str] = field(default_factory=dict)  # by name
    default_name: str | None = None  # of the one that is used where none is requested

    def __post_init__(self):
        if self.default_name is not None:
            self.text(prompt_name=self.default_name)

    def config(self) -> dict:
        """The keys of `config_sentence_transformers.json` that `layout.read_prompts` needs."""
        return {"prompts": self.texts, "default_prompt_name": self.default_name}

    def text(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """The text to put in front of a sentence: `prompt`, the one called `prompt_name`, or the default one."""
        if prompt is not None and prompt_name is not None:
            raise InputError(f"Got the prompt {prompt!r} and the prompt name {prompt_name!r}. Pass one of the two.")
        if prompt is not None:
            return prompt
        name = self.default_name if prompt_name is None else prompt_name
        if name is not None and name not in self.texts:
            names = ", ".join(self.texts) or "none"
            raise InputError(f"The model has no prompt called {name!r}, only: {names}. Pass the text itself.")
        return "" if name is None else self.texts[name]

    def sides(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> tuple[str, str]:
        """The texts to put in front of the first and the second sentence of a pair.

        Takes the arguments of `text`, or lists of two for sides that differ.
        """
        first, second = zip(two_sides(prompt), two_sides(prompt_name), strict=True)
        return self.text(*first), self.text(*second)

    def for_search(self) -> tuple[str, str]:
        """The default texts in front of queries and documents, as in sentence-transformers' `encode_query`."""
        document = next((self.texts[name] for name in DOCUMENT_NAMES if name in self.texts), self.text())
        return self.texts.get("query", self.text()), document

    def trained_with(self, sides: tuple[str, str]) -> "Prompts":
        """The prompts of a model that was trained with these.

        One for both sides becomes the default, under its name if it has one. Two that differ cannot be a default:
        unless they have names, they are `query` and `document`, as `encode_query` of sentence-transformers calls them.
        """
        first, second = sides
        if first != second:
            named = {first, second} <= set(self.texts.values())
            return Prompts(self.texts | ({} if named else dict(zip(PROMPT_SIDES, sides, strict=True))))
        if not first:
            return Prompts(self.texts)
        if self.text() == first:
            return self
        name = next((name for name, text in self.texts.items() if text == first), DEFAULT)
        return Prompts(self.texts | {name: first}, name)


def two_sides(prompt: str | Sequence[str] | None) -> Sequence[str | None]:
    """A prompt for each sentence of a pair; one, or none, counts for both."""
    values = [prompt] if prompt is None or isinstance(prompt, str) else prompt
    if len(values) not in (1, 2):
        raise InputError(
            f"--prompt and --prompt_name take one value or two, got {len(values)}: {', '.join(map(repr, values))}. Put "
            "sentences before it."
        )
    return [values[0], values[-1]]


logger = logging.getLogger(__name__)


@dataclass
class PromptArguments:
    """Prompts: texts in front of the sentences."""

    prompt: list[str] | None = option(
        None,
        "Text in front of every sentence (`search`: every query), or two: for first and second sentences; "
        '"" for none; default: the model\'s.',
    )
    prompt_name: list[str] | None = option(None, "Name of a prompt of the model, or two, instead of --prompt.")

    def __post_init__(self):
        two_sides(self.prompt)
        two_sides(self.prompt_name)
        check_line_breaks(self.prompt)

    def single(self) -> tuple[str | None, str | None]:
        """The prompt and the prompt name of a job that reads single sentences."""
        for name, values in (("prompt", self.prompt), ("prompt_name", self.prompt_name)):
            if len(values or []) > 1:
                raise InputError(f"--{name} takes one value here: there are no pairs, got {' '.join(values)}.")
        return self.prompt and self.prompt[0], self.prompt_name and self.prompt_name[0]


def check_line_breaks(prompts: list[str] | None) -> None:
    """Refuses prompts in which a shell left `\\n` as two characters."""
    for prompt in prompts or []:
        if "\\n" in prompt:
            raise InputError(
                f"--prompt {prompt!r} holds a backslash and an n, not a line break. In a shell write "
                "$'Instruct: ...\\nQuery:', in a recipe use double quotes."
            )


def warn_of_other_prompts(model: str, prompts: Prompts, *sides: str) -> None:
    """Warns if a model reads pairs (two sides) or sentences by other prompts than in our training, or its default."""
    record = read_record(model) if model else None
    trained = record is not None and record.pretraining is None
    usual = record.prompts if trained else prompts.sides()
    if (any(usual) or trained) and not (sides == usual if len(sides) == 2 else sides[0] in usual):
        verb, here = "was trained with" if trained else "has", described((sides[0], sides[-1]))
        logger.warning("%s %s %s, and reads %s here.", model or "The model", verb, described(usual), here)


def described(prompts: tuple[str, str]) -> str:
    """The prompts of both sentences in words: `the prompt 'query: '`."""
    texts = " and ".join(map(repr, dict.fromkeys(prompts)))
    return f"the prompt{'' if prompts[0] == prompts[1] else 's'} {texts}" if any(prompts) else "no prompt"
