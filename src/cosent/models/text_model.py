"""`TextModel`: base class of both towers and the student."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import nn

from cosent.compute.packing import max_tokens
from cosent.data.formats import is_blank
from cosent.data.pairs import Prefixes, tokenizer_rules
from cosent.data.tokens import run_tokenizer, tokenize_texts
from cosent.errors import InputError
from cosent.models.embedding import check_pairs
from cosent.models.folder import read_json, write_json
from cosent.models.prompts import Prompts


class TextModel(nn.Module):
    """A `backbone`, a `tokenizer` that holds the maximum length, and `prompts`: base class of both towers.

    Attributes:
        tower: `bi_encoder`, or `cross_encoder` for a model that reads both sentences of a pair together.
        packing: lay the sentences of a batch into shared rows, where that does not change the results (`packing.py`).
        prompts: texts in front of sentences, saved with the model.
        highest_score: upper bound of a pair's score.
    """

    tower = "bi_encoder"
    packing = True
    highest_score = 1.0  # a cosine
    prompts = Prompts()

    @classmethod
    @abstractmethod
    def from_pretrained(cls, model_name_or_path: str, **options: Any) -> "TextModel":
        """Loads a model in float32.

        Args:
            model_name_or_path: a shipped encoder (`mini`), a folder or a Hub id.
            max_length: tokens per sentence (cross-encoder: per pair), special tokens included; default: as in the
                tokenizer.
            dropout: probability for hidden states, attention and the head of a classifier; default: as in the model.
            seed: seed of weights that the folder lacks; the global random state is left alone.
            device: where to move it, e.g. `cuda`; default: the CPU.
        """

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def rules(self) -> str:
        """Settings besides the weights that affect the output: part of a cache key."""
        return repr(("none", self.max_length, tokenizer_rules(self.tokenizer)))

    @property
    def max_length(self) -> int:
        """Tokens per sequence, [CLS] and [SEP] included; longer ones are cut. Saved with the tokenizer."""
        return min(self.tokenizer.model_max_length, max_tokens(self.backbone.config))

    @max_length.setter
    def max_length(self, tokens: int) -> None:
        limit = max_tokens(self.backbone.config)
        if not 3 <= tokens <= limit:
            raise InputError(f"max_length must be 3 to {limit} tokens for this backbone, got {tokens}.")
        self.tokenizer.model_max_length = tokens

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, without special tokens."""
        return len(run_tokenizer(self.tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"])

    def token_ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, as the model reads it."""
        return tokenize_texts(self.tokenizer, texts, self.max_length)[0]

    def prefix(self, prompt: str) -> str:
        """The prompt itself; refuses one that leaves no room for a sentence."""
        tokens = len(run_tokenizer(self.tokenizer, prompt, verbose=False)["input_ids"]) if prompt else 0
        if tokens >= self.max_length:
            raise InputError(
                f"The prompt {prompt[:100]!r} has {tokens} tokens, the model reads {self.max_length}. Shorten it."
            )
        return prompt

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The checked prompts of both sentences of a pair; arguments as in `Prompts.sides`."""
        first, second = self.prompts.sides(prompt, prompt_name)
        return self.prefix(first), self.prefix(second)

    @overload
    def similarity(self, sentences1: str, sentences2: str, *args: Any, **options: Any) -> float: ...

    @overload
    def similarity(self, sentences1: list[str], sentences2: list[str], *args: Any, **options: Any) -> np.ndarray: ...

    def similarity(
        self,
        sentences1: str | list[str],
        sentences2: str | list[str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
        prompt: str | Sequence[str] | None = None,
        prompt_name: str | Sequence[str] | None = None,
    ) -> float | np.ndarray:
        """Score of each pair in evaluation mode: a float for two strings, shape `(pairs,)` for lists of equal length.

        A bi-encoder's is the cosine. A cross-encoder's is any real number, higher = more similar; (a, b) and (b, a) may
        differ. Warns about sentences, or pairs, over `max_length`.

        Args:
            batch_size: most sentences or pairs per forward pass; its number of tokens is limited too.
            prompt: text to put in front, "" for none; default: the default prompt of `prompts`. A list of two if they
                differ for `sentences1` and `sentences2`, which a cross-encoder refuses.
            prompt_name: instead, the name of one of `prompts`, or of two.
        """
        sides = self.prompts.sides(prompt, prompt_name)
        options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        if isinstance(sentences1, str) and isinstance(sentences2, str):
            if is_blank(sentences1) or is_blank(sentences2):
                raise InputError(f"similarity compares non-empty sentences, got {sentences1!r} and {sentences2!r}.")
            return float(self.pair_scores([sentences1], [sentences2], sides, **options)[0])
        return self.pair_scores(*check_pairs(sentences1, sentences2), sides, **options)

    @abstractmethod
    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """Float32 scores `(pairs,)` of two lists of sentences, each with the prompt of its side."""

    def save_tokenizer(self, folder: str | Path) -> None:
        self.tokenizer.model_max_length = self.max_length
        self.tokenizer.save_pretrained(folder)
        file, settings = Path(folder, "tokenizer_config.json"), read_json(str(folder), "tokenizer_config.json")
        if settings.get("tokenizer_class") == "TokenizersBackend":  # a name that transformers 4 does not know
            write_json(file, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them."""
        return type(self).from_pretrained(str(folder)).state_dict()

    def activation_checkpointing_enable(self, **kwargs) -> None:
        self.backbone.activation_checkpointing_enable(**kwargs)
