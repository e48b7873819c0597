"""`Prompts` of a model: texts put in front of every sentence, kept in `config_sentence_transformers.json`."""

from dataclasses import dataclass, field

from cosent.errors import InputError
from cosent.modeling.saved_folder import read_json

PROMPTS_CONFIG = "config_sentence_transformers.json"
BI_ENCODER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"  # `model_type` of that file


@dataclass(frozen=True)
class Prompts:
    """Texts that a model puts in front of its sentences (`query: `, or an instruction), as sentence-transformers does.

    Args:
        texts: the prompts by name.
        default_name: name of the one that is used where none is requested; None for no prompt.
        include_prompt: whether the tokens of a prompt are pooled; they are read in any case.
    """

    texts: dict[str, str] = field(default_factory=dict)
    default_name: str | None = None
    include_prompt: bool = True

    def __post_init__(self):
        if self.default_name is not None and self.default_name not in self.texts:
            raise InputError(
                f"{PROMPTS_CONFIG}: default_prompt_name is {self.default_name!r}, which is none of the prompts "
                f"({self.names}). Sentences would be read without it. Correct the file."
            )

    @classmethod
    def read(cls, path: str, model_type: str = BI_ENCODER) -> "Prompts":
        """The prompts of a folder or Hub id; none for a bare backbone, or for a model of the other type.

        Raises:
            InputError: the default prompt is not among the prompts.
        """
        config = read_json(path, PROMPTS_CONFIG) or {}
        if config.get("model_type", BI_ENCODER) != model_type:
            return cls()
        texts = {name: text or "" for name, text in (config.get("prompts") or {}).items()}
        modules = {one["type"].rsplit(".", 1)[-1]: one["path"] for one in read_json(path, "modules.json") or []}
        pooling = (read_json(path, f"{modules['Pooling']}/config.json") if "Pooling" in modules else None) or {}
        return cls(texts, config.get("default_prompt_name"), pooling.get("include_prompt", True))

    def config(self) -> dict:
        """The keys of `config_sentence_transformers.json` that `read` needs."""
        return {"prompts": self.texts, "default_prompt_name": self.default_name}

    @property
    def names(self) -> str:
        """The names, for messages."""
        return ", ".join(self.texts) or "it has none"

    def text(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """The text to put in front of a sentence: `prompt`, the one called `prompt_name`, or the default one.

        Raises:
            InputError: both, or a name that the model does not have.
        """
        if prompt is not None and prompt_name is not None:
            raise InputError(f"Got the prompt {prompt!r} and the prompt name {prompt_name!r}. Pass one of the two.")
        if prompt is not None:
            return prompt
        name = self.default_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.texts:
            raise InputError(
                f"The model has no prompt called {name!r} ({self.names}): sentences would be read without it. Take one "
                "of its names, or pass the text itself as the prompt."
            )
        return self.texts[name]
