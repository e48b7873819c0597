"""Pairs of sentences as one input, masked, and half of them beside strangers: what a cross-encoder is pretrained on."""

import logging
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

from cosent.data.pairs import tokenize_joined
from cosent.pretraining.batches import LINES_AT_A_TIME, NeighbourBatches, batched
from cosent.schema import COLUMNS, InputError

logger = logging.getLogger(__name__)


class JoinedBatches(NeighbourBatches):
    """Batches whose inputs are pairs of sentences, `[CLS] a [SEP] b [SEP]`, as a cross-encoder reads them.

    What is hidden in one sentence is often seen in the other, and half of the sentences stand beside a stranger from
    the same batch: BERT's two objectives (arXiv 1810.04805) on pairs that belong together. The sentences of a pair
    change places from pass to pass.

    Args:
        read: begins a pass and yields pairs of sentences.
        max_length: tokens of an input; the longer sentence of a longer pair loses its end, which a warning tells.
    """

    def pairs(self, skip: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This process' pairs of one pass, the sentences without [CLS] and with [SEP], in turns on odd passes."""
        if "token_type_ids" not in self.tokenizer.model_input_names:
            raise InputError("--pairs need segment ids, and this tokenizer gives none. Go on from another encoder.")
        cut, dtype = 0, np.min_scalar_type(len(self.tokenizer))
        for pairs in batched(islice(self.read(), self.rank, None, self.world), LINES_AT_A_TIME):
            columns = dict(zip(COLUMNS, map(list, zip(*pairs, strict=True)), strict=False))
            joined = tokenize_joined(columns, self.tokenizer, self.max_length)
            cut += sum(joined["truncated"])
            for ids, first_tokens in zip(joined["input_ids"], joined["first_tokens"], strict=True):
                pair = np.array(ids[1:first_tokens], dtype=dtype), np.array(ids[first_tokens:], dtype=dtype)
                yield pair[::-1] if skip else pair
        if cut:
            logger.warning("%d pairs are longer than %d tokens and lose an end (--piece_length).", cut, self.max_length)

    def collate(self, pairs: list[tuple], generator: np.random.Generator) -> dict[str, torch.Tensor]:
        """The `rows` of the pairs, and `strangers` of shape `(pairs,)`: 1 where the sentences were not found together.

        The first half of the pairs gets the second sentence of its successor, where both fit into an input.
        """
        inputs, strangers, half = [], [], len(pairs) // 2
        for number, (first, second) in enumerate(pairs):
            other = pairs[(number + 1) % half][1] if number < half else second
            strange = number < half > 1 and 1 + len(first) + len(other) <= self.max_length
            inputs.append([self.tokenizer.cls_token_id, *first, *(other if strange else second)])
            strangers.append(int(strange))
        return self.rows(inputs, generator) | {"strangers": torch.tensor(strangers)}
