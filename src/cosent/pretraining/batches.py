"""Unlabelled text: streamed from files, cut into pieces, and masked for masked-language modelling."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice

import numpy as np
import torch
from torch.utils.data import IterableDataset

from cosent.compute.packing import pack, plan_rows
from cosent.errors import InputError

LINES_AT_A_TIME = 1000  # tokenised in one call
SPAN_LENGTHS, SPAN_SHARES = (1, 2, 3), (0.5, 0.35, 0.15)  # characters: about the lengths of Chinese words
MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens (BERT, arXiv 1810.04805); the rest is kept
IGNORED = -100  # label of a token that is not predicted


class NeighbourBatches(IterableDataset):
    """Masked batches of packed rows, made of neighbouring pieces of text; endless.

    Lines longer than `max_length` are cut into pieces, so that nothing is lost. Two consecutive pieces form a pair: (1,
    2), (3, 4), ... on one pass over the text, (2, 3), (4, 5), ... on the next. Pairs leave a shuffle buffer at random,
    each once per pass, until `batch_tokens` are together. Process `rank` of `world` takes every `world`-th pair.

    Args:
        read: begins a pass over the text and yields its lines.
        tokenizer: a fast tokenizer with [CLS], [SEP] and [MASK].
        max_length: tokens of a piece, [CLS] and [SEP] included; also the width of the packed rows.
        batch_tokens: tokens of a batch, special tokens included.
        mask_ratio: share of tokens to predict; see `mask_spans`.
        buffer: pairs in the shuffle buffer. A text of fewer pairs is shuffled completely.
        positions: whether batches have `position_ids`, which architectures with relative positions do not accept.
    """

    def __init__(
        self,
        read: Callable[[], Iterator[str]],
        tokenizer,
        max_length: int,
        batch_tokens: int,
        mask_ratio: float,
        buffer: int = 1_000_000,
        positions: bool = True,
        seed: int = 42,
        rank: int = 0,
        world: int = 1,
    ):
        self.read, self.tokenizer, self.max_length = read, tokenizer, max_length
        self.batch_tokens, self.mask_ratio, self.buffer, self.positions = batch_tokens, mask_ratio, buffer, positions
        self.seed, self.rank, self.world = seed, rank, world

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields collated batches, the same ones for the same seed."""
        generator = np.random.default_rng([self.seed, self.rank])
        pairs, tokens = [], 0
        for pair in self.shuffled(generator):
            pairs.append(pair)
            tokens += sum(len(piece) + 2 for piece in pair)
            if tokens >= self.batch_tokens:
                yield self.collate(pairs, generator)
                pairs, tokens = [], 0

    def shuffled(self, generator: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs in random order, pass after pass."""
        for number in count():
            held, pair = [], None
            for pair in self.pairs(skip=number % 2):
                if len(held) < self.buffer:
                    held.append(pair)
                    continue
                place = int(generator.integers(self.buffer))
                yield held[place]
                held[place] = pair
            if pair is None:
                raise InputError("There is too little to read: each process needs two lines of text.")
            generator.shuffle(held)
            yield from held

    def pairs(self, skip: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This process's pairs of one pass in the order of the text, without the first `skip` pieces."""
        pieces = islice(self.pieces(), skip, None)
        for read, pair in enumerate(batched(pieces, 2)):
            if len(pair) == 2 and read % self.world == self.rank:
                yield pair

    def pieces(self) -> Iterator[np.ndarray]:
        """Token ids of each piece, without special tokens."""
        room, dtype = self.max_length - 2, np.min_scalar_type(len(self.tokenizer))  # two bytes, up to 65,535 entries
        for lines in batched(self.read(), LINES_AT_A_TIME):
            for ids in self.tokenizer(list(lines), add_special_tokens=False, verbose=False)["input_ids"]:
                ids = np.array(ids, dtype=dtype)
                for start in range(0, len(ids), room):
                    yield ids[start : start + room]

    def collate(self, pairs: list[tuple], generator: np.random.Generator) -> dict[str, torch.Tensor]:
        """Masked and packed `rows` of both pieces of each pair, one after the other."""
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return self.rows([[cls, *piece, sep] for pair in pairs for piece in pair], generator)

    def rows(
        self, inputs: list[list[int]], generator: np.random.Generator, masked: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Masks and packs inputs, which have their special tokens.

        Args:
            masked: mask so many inputs from the start; default: all.

        Returns:
            `input_ids`, `labels` (-100 where nothing is predicted), `segments` (the number of the input from 1; 0 where
            a row has no token), perhaps `position_ids` and `token_type_ids`, each `(rows, max_length)`.
        """
        lengths = np.array(list(map(len, inputs)))
        ids = np.zeros((len(inputs), lengths.max()), dtype=np.int64)  # (inputs, longest)
        for row, tokens in zip(ids, inputs, strict=True):
            row[: len(tokens)] = tokens
        visible, labels = ids.copy(), np.full_like(ids, IGNORED)
        visible[:masked], labels[:masked] = mask_spans(
            ids[:masked], lengths[:masked], self.mask_ratio, self.tokenizer, generator
        )
        tensors = {"input_ids": torch.from_numpy(visible), "labels": torch.from_numpy(labels)}
        if self.positions:
            tensors["position_ids"] = torch.arange(ids.shape[1]).expand(len(inputs), -1)
        if "token_type_ids" in self.tokenizer.model_input_names:
            ends = ids == self.tokenizer.sep_token_id
            tensors["token_type_ids"] = torch.from_numpy((ends.cumsum(axis=1) - ends).clip(max=1))
        packed = pack(tensors, plan_rows(lengths, self.max_length), fill={"labels": IGNORED})
        return packed.tensors | {"segments": packed.segments}


def batched(items: Iterable, size: int) -> Iterator[tuple]:
    """As `itertools.batched` of Python 3.12."""
    items = iter(items)
    while batch := tuple(islice(items, size)):
        yield batch


def mask_spans(
    ids: np.ndarray, lengths: np.ndarray, ratio: float, tokenizer, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses spans of one to three tokens and masks 80% of their tokens, replaces 10% and keeps 10%.

    A span makes the model predict a word from its sentence; a single masked character is too easy to guess from the
    rest of its word. [CLS] and [SEP] are never chosen.

    Args:
        ids: shape `(pieces, longest)`; `lengths` of shape `(pieces,)` say where each ends.
        ratio: expected share of the tokens that are chosen.

    Returns:
        Inputs and labels (-100 where nothing is predicted), each of shape `(pieces, longest)`.
    """
    place = np.arange(ids.shape[1])
    eligible = (place < lengths[:, None]) & ~np.isin(ids, (tokenizer.cls_token_id, tokenizer.sep_token_id))
    # A token stays visible if none of the spans that would cover it starts (to first order in their probability).
    start = 1 - (1 - ratio) ** (1 / np.dot(SPAN_LENGTHS, SPAN_SHARES))
    starts = generator.random(ids.shape) < start
    length = generator.choice(SPAN_LENGTHS, size=ids.shape, p=SPAN_SHARES)
    chosen = np.zeros(ids.shape, dtype=bool)
    for back in range(max(SPAN_LENGTHS)):
        covered = starts & (length > back)
        chosen[:, back:] |= covered[:, : covered.shape[1] - back]
    chosen &= eligible
    inputs, labels = ids.copy(), np.where(chosen, ids, IGNORED)
    kind = generator.random(ids.shape)
    inputs[chosen & (kind < MASKED)] = tokenizer.mask_token_id
    replaced = chosen & (kind >= MASKED) & (kind < MASKED + RANDOM)
    inputs[replaced] = generator.integers(len(tokenizer), size=int(replaced.sum()))
    return inputs, labels
