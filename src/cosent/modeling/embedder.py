"""`Embedder`: what a bi-encoder and an ensemble of them have in common."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from tqdm.auto import tqdm

from cosent.data.prefix import Prefix
from cosent.data.tokenization import warn_truncated
from cosent.inference.batches import check_pairs
from cosent.inference.embedding import embed
from cosent.modeling.text_model import TextModel


class Embedder(TextModel):
    """Base class of models that embed single sentences, and compare two by the cosine of their vectors."""

    @property
    @abstractmethod
    def embedding_dimension(self) -> int:
        """Width of a sentence vector."""

    @abstractmethod
    def readers(self, prefix: Prefix) -> list[tuple[TextModel, Prefix]]:
        """The encoders that read every sentence, each with the prompt that it reads in place of `prefix`."""

    @abstractmethod
    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The vectors `(sentences, embedding_dimension)` from those of each of the `readers`."""

    def encode(
        self,
        sentences: list[str],
        batch_size: int = 512,
        normalize: bool = False,
        show_progress_bar: bool = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray:
        """Embeds sentences in evaluation mode, each distinct one once; warns about those longer than `max_length`.

        Args:
            sentences: any number of sentences in any order.
            batch_size: most sentences per forward pass; its number of tokens is limited too.
            normalize: scale every vector to length 1, so that a dot product is the cosine.
            show_progress_bar: report progress on stderr.
            prompt: text to put in front of every sentence, "" for none; default: the default prompt of `prompts`.
            prompt_name: instead, the name of one of `prompts`.

        Returns:
            float32 array of shape `(len(sentences), hidden)`, in the order of `sentences`.

        Raises:
            InputError: one string instead of a list of them, an item that is not a string, an unknown `prompt_name`, or
                a prompt as long as `max_length`.
        """
        prefix = self.prefix(self.prompts.text(prompt, prompt_name))
        with tqdm(total=len(sentences), unit="sentence", disable=not show_progress_bar) as progress:
            vectors, truncated = embed(self, sentences, batch_size, normalize, progress.update, prefix)
        warn_truncated(truncated, len(sentences), "sentences", self.max_length)
        return vectors

    def similarity(
        self,
        sentences1: str | list[str],
        sentences2: str | list[str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
        prompt: str | Sequence[str] | None = None,
        prompt_name: str | Sequence[str] | None = None,
    ) -> float | np.ndarray:
        """Cosine of each pair: a float for two strings, shape `(pairs,)` for two lists of equal length.

        For all against all, multiply the results of `encode(..., normalize=True)`.

        Args:
            prompt, prompt_name: as for `encode`; a list of two if they differ for `sentences1` and `sentences2`.
        """
        if isinstance(sentences1, str) and isinstance(sentences2, str):
            return float(self.similarity([sentences1], [sentences2], prompt=prompt, prompt_name=prompt_name)[0])
        check_pairs(sentences1, sentences2)
        first, second = self.prompts.sides(prompt, prompt_name)
        options = {"batch_size": batch_size, "normalize": True, "show_progress_bar": show_progress_bar}
        if first == second:  # a sentence of both sides is read once
            vectors = self.encode([*sentences1, *sentences2], prompt=first, **options)
            sides = vectors[: len(sentences1)], vectors[len(sentences1) :]
        else:
            columns = zip((sentences1, sentences2), (first, second), strict=True)
            sides = tuple(self.encode(column, prompt=text, **options) for column, text in columns)
        return (sides[0] * sides[1]).sum(axis=1)
