"""`TextModel`: what bi-encoders, cross-encoders and students have in common."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import numpy as np
import torch
from torch import nn

from cosent.compute.packed_backbone import max_tokens
from cosent.compute.threads import run_tokenizer
from cosent.data.prefix import NO_PREFIX, Prefix, Prefixes
from cosent.data.tokenization import tokenizer_rules
from cosent.errors import InputError
from cosent.inference.batches import check_pairs
from cosent.modeling.prompts import Prompts


class TextModel(nn.Module):
    """Base class of both towers and the student: `backbone`, `tokenizer`, and a maximum length saved with the latter.

    Their `from_pretrained` share these parameters:
        model_name_or_path: a shipped encoder (`mini`), a folder or a Hub id.
        max_length: tokens per sentence (cross-encoder: per pair), special tokens included; default: that of the
            tokenizer.
        dropout: probability for hidden states, attention and the head of a classifier; default: that of the model.
        seed: seed of weights that the folder lacks; the global random state is left alone.
        attn_implementation: e.g. `flash_attention_2`, whose variable-length kernel then runs packed rows.
        quantization_config: a `BitsAndBytesConfig`; quantised weights stay frozen, and heads are not quantised.
        device: where to move it, e.g. `cuda`; default: the CPU.

    Attributes:
        packing: lay the sentences of a batch into shared rows instead of padding them, where that does not change the
            results (see `packing.py`); may be changed at any time.
        prompts: texts in front of sentences, saved with the model; the default one is put there unless another, or
            none (`prompt=""`), is requested.
    """

    packing = True
    prompts = Prompts()

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def rules(self) -> str:
        """What decides its answers besides its weights: part of the key of a cache."""
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

    def raise_max_length(self, tokens: int) -> None:
        """Makes room for further tokens, as far as the backbone has positions for them."""
        self.max_length = min(self.max_length + tokens, max_tokens(self.backbone.config))

    def count_tokens(self, text: str) -> int:
        """Tokens of a text without special ones."""
        return len(run_tokenizer(self.tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"])

    def prefix(self, text: str) -> Prefix:
        """A prompt as this model reads it.

        Raises:
            InputError: it is so long that nothing of a sentence would be read.
        """
        if not text:
            return NO_PREFIX
        ids = run_tokenizer(self.tokenizer, text, verbose=False)["input_ids"]
        if len(ids) >= self.max_length:
            raise InputError(
                f"The prompt {text!r} has {len(ids)} tokens, and sentences are cut to {self.max_length} with it: "
                "nothing of them would be left. Take a shorter prompt, or raise the maximum length."
            )
        if self.prompts.include_prompt:
            return Prefix(text)
        # As sentence-transformers counts: with [CLS], without the [SEP] that follows only the sentence.
        return Prefix(text, len(ids) - (ids[-1] in self.tokenizer.all_special_ids))

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The prompts of both sentences of a pair; the arguments are those of `Prompts.sides`."""
        first, second = self.prompts.sides(prompt, prompt_name)
        return self.prefix(first), self.prefix(second)

    @overload
    def similarity(
        self,
        sentences1: str,
        sentences2: str,
        batch_size: int = ...,
        show_progress_bar: bool = ...,
        prompt: str | Sequence[str] | None = ...,
        prompt_name: str | Sequence[str] | None = ...,
    ) -> float: ...

    @overload
    def similarity(
        self,
        sentences1: list[str],
        sentences2: list[str],
        batch_size: int = ...,
        show_progress_bar: bool = ...,
        prompt: str | Sequence[str] | None = ...,
        prompt_name: str | Sequence[str] | None = ...,
    ) -> np.ndarray: ...

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

        A bi-encoder's is the cosine; for all against all, multiply the results of `encode(..., normalize=True)`. A
        cross-encoder's is any real number, higher = more similar; (a, b) and (b, a) may differ. Warns about sentences,
        or pairs, over `max_length`.

        Args:
            batch_size: most sentences or pairs per forward pass; its number of tokens is limited too.
            show_progress_bar: report progress on stderr.
            prompt: text to put in front, "" for none; default: the default prompt of `prompts`. A list of two if they
                differ for `sentences1` and `sentences2`, which a cross-encoder refuses.
            prompt_name: instead, the name of one of `prompts`, or of two.

        Raises:
            InputError: a string next to a list, two strings of which one is empty, lists of different lengths, an item
                that is not a string, or a `batch_size` below 1.
        """
        sides = self.prompts.sides(prompt, prompt_name)
        options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        if isinstance(sentences1, str) and isinstance(sentences2, str):
            if not (sentences1 and sentences2):
                raise InputError(f"similarity compares non-empty sentences, got {sentences1!r} and {sentences2!r}.")
            return float(self.pair_scores([sentences1], [sentences2], sides, **options)[0])
        check_pairs(sentences1, sentences2)
        return self.pair_scores(list(sentences1), list(sentences2), sides, **options)

    @abstractmethod
    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """Float32 scores `(pairs,)` of two lists.

        Args:
            sides: the prompts of both.
            options: `batch_size` and `show_progress_bar`.
        """

    def save_tokenizer(self, folder: str | Path) -> None:
        """Writes the tokenizer, which carries `max_length`."""
        self.tokenizer.model_max_length = self.max_length
        self.tokenizer.save_pretrained(folder)

    def gradient_checkpointing_enable(self, **kwargs) -> None:
        self.backbone.gradient_checkpointing_enable(**kwargs)
