"""`Embedder`: what a bi-encoder and an ensemble of them have in common."""

from abc import abstractmethod

import numpy as np
import torch
from tqdm.auto import tqdm

from cosent.data.prefix import Prefix
from cosent.data.tokenization import warn_truncated
from cosent.evaluation.cosines import pair_cosines
from cosent.inference.batches import check_sentences
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
            InputError: one string instead of a list of them, what has no order or no length (a set, a generator), an
                item that is not a string, a `batch_size` below 1, an unknown `prompt_name`, or a prompt as long as
                `max_length`.
        """
        check_sentences(sentences)
        prefix = self.prefix(self.prompts.text(prompt, prompt_name))
        with tqdm(total=len(sentences), unit="sentence", disable=not show_progress_bar) as progress:
            vectors, truncated = embed(self, sentences, batch_size, normalize, progress.update, prefix)
        warn_truncated(truncated, len(sentences), "sentences", self.max_length)
        return vectors

    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """The cosine of each pair."""
        first, second = sides
        if first == second:  # a sentence of both sides is read once
            vectors = self.encode([*sentences1, *sentences2], normalize=True, prompt=first, **options)
            one, other = vectors[: len(sentences1)], vectors[len(sentences1) :]
        else:
            columns = zip((sentences1, sentences2), sides, strict=True)
            one, other = (self.encode(column, normalize=True, prompt=text, **options) for column, text in columns)
        return pair_cosines(one, other)
