"""From a prepared corpus to batches: tokenised once, read from memory-mapped Arrow.

A bi-encoder reads the two sentences of a pair apart (`PairDataset`, batches of shape `(batch, 2, tokens)`), a
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
from cosent.errors import InputError
from cosent.schema import COLUMNS


def tokenize_apart(batch: dict, tokenizer, max_length: int) -> dict[str, list]:
    """Token ids of both sentences, each cut at `max_length`, and how many of the two were cut."""
    options = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    sides = [tokenizer(batch[name], **options) for name in COLUMNS[:2]]
    cut = np.array([[bool(row.overflowing) for row in side.encodings] for side in sides])
    return {"input_ids1": sides[0]["input_ids"], "input_ids2": sides[1]["input_ids"], "truncated": cut.sum(axis=0)}


def tokenize_joined(batch: dict, tokenizer, max_length: int) -> dict[str, list]:
    """Token ids of `[CLS] sentence1 [SEP] sentence2 [SEP]`, cut at the end of the longer sentence.

    Returns:
        `input_ids`; `first_tokens`, how many of them have segment id 0 (all, where the tokenizer gives no segments);
        `truncated`, whether the pair was cut.

    Raises:
        InputError: the tokenizer numbers segments otherwise than zeros before ones.
    """
    options = {"truncation": "longest_first", "max_length": max_length, "return_attention_mask": False}
    pairs = tokenizer(batch["sentence1"], batch["sentence2"], **options)
    ids, first_tokens = pairs["input_ids"], [len(ids) for ids in pairs["input_ids"]]
    for row, segments in enumerate(pairs.get("token_type_ids", [])):
        first_tokens[row] = len(segments) - sum(segments)
        if segments != [0] * first_tokens[row] + [1] * sum(segments):
            raise InputError(
                f"This tokenizer gives a pair the segment ids {segments}, expected zeros before ones: another model "
                "would be trained than was pretrained. Pass --segment_ids zero, or take another encoder."
            )
    truncated = [bool(row.overflowing) for row in pairs.encodings]
    return {"input_ids": ids, "first_tokens": first_tokens, "truncated": truncated}


IDS = datasets.Sequence(datasets.Value("int32"))
TOKEN_FEATURES = {
    tokenize_apart: {"input_ids1": IDS, "input_ids2": IDS},
    tokenize_joined: {"input_ids": IDS, "first_tokens": datasets.Value("int32")},
}


class PairDataset(torch.utils.data.Dataset):
    """Tokenised pairs, the two sentences apart, read as slices of memory-mapped columns.

    Args:
        labels: float32 of shape `(pairs,)`, what a loss is given; default: the labels of the rows.

    Attributes:
        truncated: how many of `sequences` (`unit` says what they are) were longer than the maximum and lost their end.
    """

    tokenize = staticmethod(tokenize_apart)
    unit = "sentences"

    def __init__(self, rows: datasets.Dataset, tokenizer, max_length: int, labels: np.ndarray | None = None):
        table = tokenized(rows, tokenizer, max_length, self.tokenize).data
        self.columns: list[Any] = [contents(table.column(name)) for name in TOKEN_FEATURES[self.tokenize]]
        self.labels = labels_of(rows) if labels is None else labels
        self.truncated = int(np.sum(table.column("truncated")))

    @property
    def sequences(self) -> int:
        return 2 * len(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
        first, second = (ids[offsets[index] : offsets[index + 1]] for ids, offsets in self.columns)
        return first, second, self.labels[index]


class JoinedPairDataset(PairDataset):
    """Tokenised pairs, both sentences in one sequence: `(token ids, tokens of segment 0, label)`."""

    tokenize = staticmethod(tokenize_joined)
    unit = "pairs"

    @property
    def sequences(self) -> int:
        return len(self)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.float32]:  # type: ignore[override]
        (ids, offsets), first_tokens = self.columns
        return ids[offsets[index] : offsets[index + 1]], first_tokens[index], self.labels[index]


def tokenized(rows: datasets.Dataset, tokenizer, max_length: int, tokenize: Callable) -> datasets.Dataset:
    """Runs `tokenize` over rows, into an Arrow cache keyed by rows, tokenizer, length and kind of tokenising."""
    return rows.map(
        lambda batch: tokenize(batch, tokenizer, max_length),
        batched=True,
        remove_columns=list(COLUMNS),
        features=datasets.Features(**TOKEN_FEATURES[tokenize], truncated=datasets.Value("int8")),
        new_fingerprint=fingerprint(rows, tokenizer, f"{tokenize.__name__}|{max_length}"),
        writer_batch_size=len(rows),  # one chunk, which is read without a copy
        desc="Tokenising",
    )


def contents(column) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Views of a memory-mapped column: numbers, or for lists `(values, offsets)`.

    `values[offsets[i] : offsets[i + 1]]` is row i.
    """
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return (column.values.to_numpy(), column.offsets.to_numpy()) if hasattr(column, "offsets") else column.to_numpy()


def fingerprint(rows: datasets.Dataset, tokenizer, how: str) -> str:
    """Key of the token cache."""
    return hashlib.sha256(f"{rows._fingerprint}|{how}|{rules_of(tokenizer)}".encode()).hexdigest()[:32]


def rules_of(tokenizer) -> str:
    """A fast tokenizer's rules and vocabulary, without what its last call left set in it: part of a cache's key."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return f"{tokenizer.model_input_names}|{json.dumps(backend)}"
