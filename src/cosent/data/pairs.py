"""Datasets of tokenised pairs: tokenised once, read from memory-mapped Arrow.

A bi-encoder reads the two sentences of a pair separately (`PairDataset`, batches of shape `(batch, 2, tokens)`), a
cross-encoder reads them joined in one sequence (`JoinedPairDataset`, `(batch, tokens)`).
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import torch

from cosent.data.corpus import labels_of
from cosent.data.prefix import NO_PREFIXES, Prefixes
from cosent.data.tokenization import tokenize_apart, tokenize_joined, tokenizer_rules
from cosent.schema import COLUMNS

IDS = datasets.Sequence(datasets.Value("int32"))
TOKEN_FEATURES = {
    tokenize_apart: {"input_ids1": IDS, "input_ids2": IDS},
    tokenize_joined: {"input_ids": IDS, "first_tokens": datasets.Value("int32")},
}


class PairDataset(torch.utils.data.Dataset):
    """Tokenised pairs, the two sentences separate, read as slices of memory-mapped columns.

    Args:
        labels: targets for the loss, float32 of shape `(pairs,)`; default: the labels of the rows.
        prefixes: the prompts of both sides.
        groups: result of `sentence_groups`, for losses that compare sentences of different pairs; then the fourth item
            of a pair.

    Attributes:
        truncated: how many of `sequences` (counted in `unit`) were longer than the maximum and lost their end.
        retrieval: what is to be found among their sentences, see `training.retrieval_set`; None to measure only scores.
    """

    tokenize = staticmethod(tokenize_apart)
    unit = "sentences"
    retrieval: Any = None

    def __init__(
        self,
        rows: datasets.Dataset,
        tokenizer,
        max_length: int,
        labels: np.ndarray | None = None,
        prefixes: Prefixes = NO_PREFIXES,
        groups: np.ndarray | None = None,
    ):
        table = tokenized(rows, tokenizer, max_length, self.tokenize, prefixes).data
        self.columns: list[Any] = [column_view(table.column(name)) for name in TOKEN_FEATURES[self.tokenize]]
        self.labels = labels_of(rows) if labels is None else labels
        self.groups = groups
        self.truncated = int(np.sum(table.column("truncated")))

    @property
    def sequences(self) -> int:
        return 2 * len(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple:
        first, second = (ids[offsets[index] : offsets[index + 1]] for ids, offsets in self.columns)
        pair = first, second, self.labels[index]
        return pair if self.groups is None else (*pair, self.groups[index])


class JoinedPairDataset(PairDataset):
    """Tokenised pairs, both sentences in one sequence: `(token ids, tokens of segment 0, label)`."""

    tokenize = staticmethod(tokenize_joined)
    unit = "pairs"

    @property
    def sequences(self) -> int:
        return len(self)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.float32]:
        (ids, offsets), first_tokens = self.columns
        return ids[offsets[index] : offsets[index + 1]], first_tokens[index], self.labels[index]


def tokenized(
    rows: datasets.Dataset, tokenizer, max_length: int, tokenize: Callable, prefixes: Prefixes
) -> datasets.Dataset:
    """Tokenises rows into an Arrow cache keyed by rows, tokenizer, length, kind of tokenisation and prompts."""
    how, prompts = f"{tokenize.__name__}|{max_length}", [prefix.text for prefix in prefixes]
    how += f"|{json.dumps(prompts)}" if any(prompts) else ""
    return rows.map(
        lambda batch: tokenize(batch, tokenizer, max_length, prefixes),
        batched=True,
        remove_columns=list(COLUMNS),
        features=datasets.Features(**TOKEN_FEATURES[tokenize], truncated=datasets.Value("int8")),
        new_fingerprint=fingerprint(rows, tokenizer, how),
        writer_batch_size=len(rows),  # a single chunk can be read without a copy
        desc="Tokenising",
    )


def column_view(column) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Views of a memory-mapped column: numbers, or for lists `(values, offsets)`.

    `values[offsets[i] : offsets[i + 1]]` is row i.
    """
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return (column.values.to_numpy(), column.offsets.to_numpy()) if hasattr(column, "offsets") else column.to_numpy()


def fingerprint(rows: datasets.Dataset, tokenizer, how: str) -> str:
    """Key of the token cache."""
    return hashlib.sha256(f"{rows._fingerprint}|{how}|{tokenizer_rules(tokenizer)}".encode()).hexdigest()[:32]
