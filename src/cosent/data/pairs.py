"""Pairs as a model reads them: tokens in memory-mapped Arrow, drawn by corpus, in padded batches.

A bi-encoder reads the two sentences of a pair separately (`PairDataset`, batches of shape `(batch, 2, tokens)`), a
cross-encoder reads them joined in one sequence (`JoinedPairDataset`, `(batch, tokens)`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cosent.data.corpus import COLUMNS, labels_of
from cosent.data.tokens import run_tokenizer, tokenize_pairs
from cosent.errors import InputError

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import datasets  # half a second, which models that serve do without


Prefixes = tuple[str, str]  # prompts in front of the first and the second sentence of a pair
NO_PREFIXES: Prefixes = ("", "")
LONGEST_EPOCH = 100  # times the steps that read every corpus once


def tokenize_apart(batch: dict, tokenizer, max_length: int, prefixes: Prefixes = NO_PREFIXES) -> dict[str, list]:
    """Token ids of both sentences behind their prompts, each cut at `max_length`, and how many of the two were cut."""
    options = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    sides = [run_tokenizer(tokenizer, texts, **options) for texts in prefixed(batch, prefixes)]
    cut = np.array([[bool(row.overflowing) for row in side.encodings] for side in sides])
    return {"input_ids1": sides[0]["input_ids"], "input_ids2": sides[1]["input_ids"], "truncated": cut.sum(axis=0)}


def tokenize_joined(batch: dict, tokenizer, max_length: int, prefixes: Prefixes = NO_PREFIXES) -> dict[str, list]:
    """Token ids of `[CLS] sentence1 [SEP] sentence2 [SEP]` with their prompts, cut at the end of the longer sentence.

    Returns:
        `input_ids`; `first_tokens`, how many of them have segment id 0 (all, if the tokenizer has no segments);
        `truncated`, whether the pair was cut.
    """
    first, second = prefixed(batch, prefixes)
    return tokenize_pairs(tokenizer, first, second, max_length)


def prefixed(batch: dict, prefixes: Prefixes) -> list[list[str]]:
    """Both columns of sentences, each sentence behind the prompt of its side."""
    sides = zip(COLUMNS[:2], prefixes, strict=True)
    return [[prefix + sentence for sentence in batch[name]] for name, prefix in sides]


def tokenizer_rules(tokenizer) -> str:
    """All of a fast tokenizer that decides token ids, without the state of its last call: part of a cache's key."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    outside = tokenizer.model_input_names, tokenizer.truncation_side, tokenizer.split_special_tokens
    return f"{outside}|{json.dumps(backend)}"


def warn_truncated(truncated: int, total: int, unit: str, max_length: int, where: str = "", flag: str = "") -> None:
    """Warns, unless `truncated` is 0, that so many of `total` lost their end; `flag` sets the limit."""
    if truncated:
        place, remedy = f"{where}: " if where else "", f" Raise {flag} to read more." if flag else ""
        count = f"{place}{truncated} of {total} {unit}"
        logger.warning("%s are longer than %d tokens and are truncated.%s", count, max_length, remedy)


TOKEN_COLUMNS = {tokenize_apart: ("input_ids1", "input_ids2"), tokenize_joined: ("input_ids", "first_tokens")}


class PairDataset(torch.utils.data.Dataset):
    """Tokenised pairs, the two sentences separate, read as slices of memory-mapped columns.

    An item is `(first ids, second ids, targets by name)`.

    Args:
        labels: targets for the loss, float32 of shape `(pairs,)`; default: the labels of the rows.
        prefixes: the prompts of both sides.
        targets: further columns of targets, with a row for each pair, e.g. `groups`, the result of `sentence_groups`.

    Attributes:
        truncated: how many of `sequences` (counted in `unit`) were longer than the maximum and lost their end.
    """

    tokenize = staticmethod(tokenize_apart)
    unit = "sentences"

    def __init__(
        self,
        rows: datasets.Dataset,
        tokenizer,
        max_length: int,
        labels: np.ndarray | None = None,
        prefixes: Prefixes = NO_PREFIXES,
        **targets: np.ndarray,
    ):
        table = token_table(rows, tokenizer, max_length, self.tokenize, prefixes).data
        self.columns: list[Any] = [column_view(table.column(name)) for name in TOKEN_COLUMNS[self.tokenize]]
        self.targets = {"labels": labels_of(rows) if labels is None else labels} | targets
        self.truncated = int(np.sum(table.column("truncated")))

    @property
    def labels(self) -> np.ndarray:
        return self.targets["labels"]

    @property
    def sequences(self) -> int:
        return 2 * len(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple:
        first, second = (ids[offsets[index] : offsets[index + 1]] for ids, offsets in self.columns)
        return first, second, self.targets_of(index)

    def targets_of(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.targets.items()}


class JoinedPairDataset(PairDataset):
    """Tokenised pairs, both sentences in one sequence: `(token ids, tokens of segment 0, targets by name)`."""

    tokenize = staticmethod(tokenize_joined)
    unit = "pairs"

    @property
    def sequences(self) -> int:
        return len(self)

    def __getitem__(self, index: int) -> tuple:
        (ids, offsets), first_tokens = self.columns
        return ids[offsets[index] : offsets[index + 1]], first_tokens[index], self.targets_of(index)


def token_table(
    rows: datasets.Dataset, tokenizer, max_length: int, tokenize: Callable, prefixes: Prefixes
) -> datasets.Dataset:
    """Tokenises rows into an Arrow cache keyed by rows, tokenizer, length, kind of tokenisation and prompts."""
    import datasets

    ids, number = datasets.Sequence(datasets.Value("int32")), datasets.Value("int32")
    columns = {name: number if name == "first_tokens" else ids for name in TOKEN_COLUMNS[tokenize]}
    key = f"{rows._fingerprint}|{tokenize.__name__}|{max_length}|{json.dumps(prefixes)}|{tokenizer_rules(tokenizer)}"
    return rows.map(
        lambda batch: tokenize(batch, tokenizer, max_length, prefixes),
        batched=True,
        remove_columns=list(COLUMNS),
        features=datasets.Features(**columns, truncated=datasets.Value("int8")),
        new_fingerprint=hashlib.sha256(key.encode()).hexdigest()[:32],
        writer_batch_size=len(rows),  # a single chunk can be read without a copy
        desc="Tokenising",
    )


def column_view(column) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Views of a memory-mapped column: numbers, or for lists `(values, offsets)`.

    `values[offsets[i] : offsets[i + 1]]` is row i.
    """
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return (column.values.to_numpy(), column.offsets.to_numpy()) if hasattr(column, "offsets") else column.to_numpy()


class CorpusSampler(torch.utils.data.Sampler[int]):
    """Draws from several corpora in turn, one corpus per batch, so that labels of different kinds are never compared.

    An epoch ends when every row of every corpus has been visited: the corpus that is longest for its weight is read
    once, the others start over in a new order. Row numbers run through the corpora in order, as in `ConcatDataset`.

    Args:
        lengths: rows of each corpus.
        block: rows that must come from one corpus: the global batch, over all devices and accumulation steps.
        seed: seed of the order; `set_epoch` changes it from epoch to epoch.
        weights: share of the blocks of each corpus, up to a common factor; default: equal shares.
    """

    def __init__(self, lengths: list[int], block: int, seed: int, weights: list[float] | None = None):
        self.lengths = lengths
        self.block = block
        self.seed = seed
        self.turns = turns([-(-length // block) for length in lengths], weights or [1.0] * len(lengths))
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.turns) * self.block

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng((self.seed, self.epoch))
        offsets = np.cumsum([0, *self.lengths[:-1]])
        streams = [endless(length, offset, generator) for length, offset in zip(self.lengths, offsets, strict=True)]
        for corpus in self.turns:
            yield from islice(streams[corpus], self.block)


def turns(blocks: list[int], weights: list[float]) -> list[int]:
    """Assigns blocks to corpora until each corpus has been read in full.

    The next block goes to the corpus that is furthest behind its share: weights 2, 1 result in 0, 1, 0, 0, 1, 0, ...
    """
    shares = np.array(weights) / sum(weights)
    total = float((blocks / shares).max())
    if total > LONGEST_EPOCH * sum(blocks):
        raise InputError(
            f"--corpus_weights {' '.join(f'{weight:g}' for weight in weights)}: reading every corpus once takes "
            f"{total:,.0f} steps in these shares, and {sum(blocks):,} without. Give weights closer together, or leave "
            "corpora of small weights out."
        )
    counts = np.zeros(len(blocks), dtype=int)
    order: list[int] = []
    while (counts < blocks).any():
        order.append(int(np.argmax(shares * (len(order) + 1) - counts)))
        counts[order[-1]] += 1
    return order


def endless(length: int, offset: int, generator: np.random.Generator) -> Iterator[int]:
    """Row numbers `offset .. offset + length - 1` in random order, again and again."""
    while True:
        yield from (offset + generator.permutation(length)).tolist()


@dataclass
class PairCollator:
    """Pads pairs on the right to the longest sentence of the batch.

    Example, with `pad_token_id` 0 and one pair of 2 and 3 tokens::

        PairCollator(0)([([2, 3], [2, 7, 3], {"labels": 1.0})])
        {"input_ids":      [[[2, 3, 0], [2, 7, 3]]],    # (batch, 2, tokens), int64
         "attention_mask": [[[1, 1, 0], [1, 1, 1]]],    # (batch, 2, tokens), int64
         "labels":         [1.0]}                       # (batch,), float32

    Further targets are added by their names, `groups` as int64 of shape (batch, 2).
    """

    pad_token_id: int

    @classmethod
    def from_tokenizer(cls, tokenizer) -> PairCollator:
        return cls(tokenizer.pad_token_id)

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        padded = pad([ids for first, second, *_ in pairs for ids in (first, second)], self.pad_token_id)
        batch = {name: tensor.view(len(pairs), 2, -1) for name, tensor in padded.items()}
        return batch | collated_targets(pairs)


@dataclass
class JoinedPairCollator:
    """Pads joined pairs on the right to the longest of the batch, and numbers their segments where a model wants it.

    Example, with `pad_token_id` 0, segments, and pairs of 2 + 2 and 2 + 1 tokens::

        JoinedPairCollator(0, True)([([2, 3, 7, 3], 2, {"labels": 1.0}), ([2, 3, 3], 2, {"labels": 0.0})])
        {"input_ids":      [[2, 3, 7, 3], [2, 3, 3, 0]],    # (batch, tokens), int64
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],    # (batch, tokens), int64
         "token_type_ids": [[0, 0, 1, 1], [0, 0, 1, 0]],    # (batch, tokens), int64; absent without segments
         "labels":         [1.0, 0.0]}                      # (batch,), float32
    """

    pad_token_id: int
    segments: bool

    @classmethod
    def from_tokenizer(cls, tokenizer) -> JoinedPairCollator:
        return cls(tokenizer.pad_token_id, "token_type_ids" in tokenizer.model_input_names)

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        batch = pad([ids for ids, *_ in pairs], self.pad_token_id)
        if self.segments:
            first_tokens = torch.tensor([int(first) for _, first, *_ in pairs])[:, None]
            is_second = torch.arange(batch["input_ids"].shape[1]) >= first_tokens
            batch["token_type_ids"] = is_second * batch["attention_mask"]
        return batch | collated_targets(pairs)


def collated_targets(pairs: list[tuple]) -> dict[str, torch.Tensor]:
    """The targets of pairs by name, `(batch, ...)` each; floats become float32."""
    columns = {name: torch.from_numpy(np.stack([pair[2][name] for pair in pairs])) for name in pairs[0][2]}
    return {name: column.float() if column.is_floating_point() else column for name, column in columns.items()}


def pad(sequences: list[np.ndarray] | list[list[int]], pad_token_id: int) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of shape `(sequences, longest)`, int64, padded on the right."""
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(lengths.max()) < lengths[:, None]
    input_ids = np.full(mask.shape, pad_token_id, dtype=np.int64)
    input_ids[mask] = np.concatenate(sequences)
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
