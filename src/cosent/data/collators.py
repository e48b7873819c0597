"""Batches of tokenised pairs, padded on the right."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


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
