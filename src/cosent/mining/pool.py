"""Sentences to make pairs of, and the pairs that a corpus labels already."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.text import normalized_text
from cosent.errors import InputError


@dataclass(frozen=True)
class Pool:
    """Distinct sentences, and the labelled pairs of a train split by their places.

    Args:
        texts: distinct sentences. Pairs are made of the first `size`; the others belong to labelled pairs, but a
            held-out split has them too.
        size: see `texts`.
        forms: int64 of shape `(texts,)`, equal for sentences that differ only in punctuation, spaces and case.
        first, second: int64 of shape `(labelled pairs,)`, places of the two different sentences of each pair, which is
            there once, in whatever order.
        labels: float32 of shape `(labelled pairs,)`.
        left_out: reason -> number of sentences or labelled pairs.
    """

    texts: list[str]
    size: int
    forms: np.ndarray
    first: np.ndarray
    second: np.ndarray
    labels: np.ndarray
    left_out: Counter

    def keys(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """A number for each unordered pair; shape of `first`."""
        return np.minimum(first, second) * len(self.texts) + np.maximum(first, second)

    def known(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether the corpus labels a pair, or its sentences are the same but for their form; shape of `first`."""
        return (self.forms[first] == self.forms[second]) | among(self.keys(first, second), self.labelled)

    @cached_property
    def labelled(self) -> np.ndarray:
        """Sorted keys of the labelled pairs."""
        return np.sort(self.keys(self.first, self.second))

    def most_known(self) -> int:
        """Upper bound of the sentences of the pool that form a known pair with the same sentence."""
        inside = (self.first < self.size) & (self.second < self.size)
        partners = np.bincount(np.r_[self.first[inside], self.second[inside]], minlength=self.size)
        _, form, copies = np.unique(self.forms[: self.size], return_inverse=True, return_counts=True)
        return int((partners + copies[form] - 1).max())


def read_pool(corpus: Corpus, lines: Iterable[str]) -> Pool:
    """The sentences of a corpus' train split and of plain text, without those of its other splits.

    Raises:
        InputError: fewer than two sentences are left.
    """
    rows = corpus.split("train")
    columns = [rows[name][:] for name in ("sentence1", "sentence2")]
    others = (corpus.splits[name] for name in corpus.splits if name != "train")
    held_out = {form_of(text) for part in others for name in ("sentence1", "sentence2") for text in part[name][:]}
    own = dict.fromkeys(text for pair in zip(*columns, strict=True) for text in pair)
    every = own | dict.fromkeys(lines)
    texts = [text for text in every if form_of(text) not in held_out]
    left_out = Counter({"sentence of a held-out split": len(every) - len(texts)})
    size = len(texts)
    if size < 2:
        raise InputError(
            f"{corpus.folder} train has {len(own)} sentences, and all but {size} are in its other splits too: no pair "
            "can be made without them. Add sentences with --text."
        )
    texts += [text for text in own if form_of(text) in held_out]
    place = {text: index for index, text in enumerate(texts)}
    numbers: dict[str, int] = {}
    forms = np.array([numbers.setdefault(form_of(text), len(numbers)) for text in texts])
    first, second = (np.array([place[text] for text in column], np.int64) for column in columns)
    different = first != second
    _, once = np.unique(np.minimum(first, second) * len(texts) + np.maximum(first, second), return_index=True)
    once = np.sort(once[different[once]])
    left_out["labelled pair of one sentence"] = int((~different).sum())
    left_out["labelled pair repeated"] = int(different.sum()) - len(once)
    return Pool(texts, size, forms, first[once], second[once], corpus.labels("train")[once], left_out)


def form_of(text: str) -> str:
    """The sentence without punctuation, spaces and case; as it is where nothing would be left."""
    return normalized_text(text) or text


def among(values: np.ndarray, sorted_values: np.ndarray) -> np.ndarray:
    """Whether each value is one of the sorted ones; shape of `values`."""
    if not len(sorted_values):
        return np.zeros(np.shape(values), bool)
    places = np.searchsorted(sorted_values, values).clip(max=len(sorted_values) - 1)
    return sorted_values[places] == values
