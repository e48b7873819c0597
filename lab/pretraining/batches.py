"""Batches for pretraining: unlabelled text, masked for masked-language modelling, and lines joined to be compared."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from cosent.compute.packing import pack, plan_rows
from cosent.data.corpus import load_corpus
from cosent.data.files import normalized_text, read_texts
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.loading import load_tokenizer

WORD_PIECES = 500  # entries kept for Latin word pieces and numbers; the others are single characters
SPAN_LENGTHS, SPAN_SHARES = (1, 2, 3), (0.5, 0.35, 0.15)  # characters: about the lengths of Chinese words
PIECE = 128  # tokens of a piece of text, [CLS] and [SEP] included; also the width of the packed rows
MASK_RATIO = 0.3  # expected share of the tokens to predict
MASKED, RANDOM = 0.8, 0.1  # shares of the chosen tokens (BERT, arXiv 1810.04805); the rest is kept
IGNORED = -100  # label of a token that is not predicted
POOL, CODE, NEAREST = 2000, 128, 8  # near lines: pairs that are searched, size of a line's code, candidates
LONGEST = 40  # tokens of each joined line; longer ones lose their end
MASKED_SHARE = 1 / 3  # of the joined inputs; the others are compared


class Texts:
    """The lines of all files without held-out sentences; `left_out` counts those of the last complete pass.

    Args:
        names: files of text.
        corpora: prepared corpora whose validation and test sentences are left out, whatever their punctuation.
    """

    def __init__(self, names: list[str], corpora: list[str], data_dir: str):
        self.names, self.excluded, self.left_out = names, set(), None
        for corpus in (load_corpus(name, data_dir) for name in corpora):
            for split in set(corpus.splits) - {"train"}:
                for column in ("sentence1", "sentence2"):
                    self.excluded.update(map(normalized_text, corpus.split(split)[column]))

    def read(self) -> Iterator[str]:
        left_out = 0
        for text in read_texts(self.names):
            if normalized_text(text) in self.excluded:
                left_out += 1
            else:
                yield text
        self.left_out = left_out


def learn_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerBase:
    """A lower-casing tokenizer as that of `mini`: at most `size` frequent characters, word pieces, special tokens."""
    characters = max(size - WORD_PIECES, size // 2)
    like = load_tokenizer(resolve("mini"))
    return like.train_new_from_iterator(texts, size, limit_alphabet=characters, show_progress=False)


@dataclass(eq=False)
class NeighbourBatches(IterableDataset):
    """Endless masked batches of packed rows, made of neighbouring pieces of text, the same ones for the same seed.

    Lines longer than `PIECE` are cut into pieces. Two consecutive pieces form a pair: (1, 2), (3, 4), ... on one pass
    over the text, (2, 3), (4, 5), ... on the next, each pass in random order. The tokens of the text stay in memory.

    Args:
        texts: lines of text.
        batch_tokens: tokens of a batch, special tokens included.
        positions: whether batches have `position_ids`, which architectures with relative positions do not accept.
    """

    texts: Callable[[], Iterator[str]]
    tokenizer: PreTrainedTokenizerBase
    batch_tokens: int
    positions: bool = True
    seed: int = 42

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        generator = np.random.default_rng(self.seed)
        pairs, tokens = [], 0
        for pair in self.shuffled(generator):
            pairs.append(pair)
            tokens += sum(len(piece) + 2 for piece in pair)
            if tokens >= self.batch_tokens:
                yield self.rows(self.single(pairs), generator)
                pairs, tokens = [], 0

    def shuffled(self, generator: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs in random order, pass after pass."""
        pieces = list(self.pieces())
        if len(pieces) < 2:
            raise InputError("There is too little to read: two lines of text are needed.")
        for number in count():
            firsts = np.arange(number % 2, len(pieces) - 1, 2)
            yield from ((pieces[first], pieces[first + 1]) for first in generator.permutation(firsts))

    def pieces(self) -> Iterator[np.ndarray]:
        """Token ids of each piece, without special tokens."""
        room, dtype = PIECE - 2, np.min_scalar_type(len(self.tokenizer))  # two bytes, up to 65,535 entries
        for lines in batched(self.texts(), 1000):
            for ids in self.tokenizer(list(lines), add_special_tokens=False, verbose=False)["input_ids"]:
                ids = np.array(ids, dtype=dtype)
                yield from (ids[start : start + room] for start in range(0, len(ids), room))

    def single(self, pairs: list[tuple]) -> list[list[int]]:
        """Both pieces of each pair in turn, with special tokens."""
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        return [[cls, *piece, sep] for pair in pairs for piece in pair]

    def rows(
        self, inputs: list[list[int]], generator: np.random.Generator, masked: int | None = None
    ) -> dict[str, Tensor]:
        """Masks and packs inputs, which have their special tokens.

        Args:
            masked: number of inputs, from the start, to mask; default: all.

        Returns:
            `input_ids`, `labels` (-100 where nothing is predicted), `segments` (the number of the input from 1; 0 where
            a row has no token), `token_type_ids`, perhaps `position_ids`, each `(rows, PIECE)`.
        """
        lengths = np.array(list(map(len, inputs)))
        ids = np.zeros((len(inputs), lengths.max()), dtype=np.int64)  # (inputs, longest)
        for row, tokens in zip(ids, inputs, strict=True):
            row[: len(tokens)] = tokens
        visible, labels = ids.copy(), np.full_like(ids, IGNORED)
        visible[:masked], labels[:masked] = mask_spans(ids[:masked], lengths[:masked], self.tokenizer, generator)
        tensors = {"input_ids": torch.from_numpy(visible), "labels": torch.from_numpy(labels)}
        if self.positions:
            tensors["position_ids"] = torch.arange(ids.shape[1]).expand(len(inputs), -1)
        ends = ids == self.tokenizer.sep_token_id
        tensors["token_type_ids"] = torch.from_numpy((ends.cumsum(axis=1) - ends).clip(max=1))
        packed = pack(tensors, plan_rows(lengths, PIECE), fill={"labels": IGNORED})
        return packed.tensors | {"segments": packed.segments}


class ComparedBatches(NeighbourBatches):
    """Batches of `NeighbourBatches` in turn with batches of joined lines, `[CLS] a [SEP] b [SEP]`.

    A line is joined with its neighbour, with a line that shares many tokens with it, or with a random one, each a third
    of the time. With `gradient_accumulation_steps` of 2, a step reads one batch of each kind.
    """

    def __iter__(self) -> Iterator[dict]:
        generator = np.random.default_rng(self.seed)
        lines, joined = [], []
        for pool in batched(self.shuffled(generator), POOL):
            lines += pool
            joined += self.joined(pool, generator)
            while (alone := self.enough(lines, 4)) and (together := self.enough(joined, 3)):
                yield self.rows(self.single(lines[:alone]), generator)
                yield self.compare(joined[:together], generator)
                del lines[:alone], joined[:together]

    def enough(self, pairs: list[tuple], special: int) -> int:
        """Number of pairs, each with so many special tokens, that make a batch; 0 if there are too few."""
        sizes = np.cumsum([len(pair[0]) + len(pair[1]) + special for pair in pairs])
        full = int(np.searchsorted(sizes, self.batch_tokens))
        return full + 1 if full < len(sizes) else 0

    def joined(self, pool: tuple[tuple, ...], generator: np.random.Generator) -> list[tuple]:
        """Lines to join: `(first, second, overlap)`, one for each pair of the pool."""
        first, second = ([pair[side][:LONGEST] for pair in pool] for side in (0, 1))
        weights = rarity(first + second, len(self.tokenizer))
        near = near_lines(first, second, weights, generator)
        anywhere = generator.integers(len(pool), size=len(pool))
        kind = generator.integers(3, size=len(pool))
        others = np.choose(kind, [np.arange(len(pool)), near, anywhere])
        return [(a, second[other], overlap(a, second[other], weights)) for a, other in zip(first, others, strict=True)]

    def compare(self, joined: list[tuple], generator: np.random.Generator) -> dict:
        """Packed `rows` of joined lines, the first third masked, with what is needed to compare the others.

        `overlaps` of shape `(pairs,)` are the shares of common tokens, NaN for masked pairs; `alone` are packed rows of
        the lines on their own, first and second line of each pair in turn, without masks.
        """
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        masked = round(MASKED_SHARE * len(joined))
        swap = generator.random(len(joined)) >= 0.5
        pairs = [(b, a) if swapped else (a, b) for (a, b, _), swapped in zip(joined, swap, strict=True)]
        rows = self.rows([[cls, *a, sep, *b, sep] for a, b in pairs], generator, masked=masked)
        alone = self.rows(self.single(pairs), generator, masked=0)
        overlaps = np.array([shared for _, _, shared in joined], dtype=np.float32)
        overlaps[:masked] = np.nan
        del alone["labels"]
        return rows | {"overlaps": torch.from_numpy(overlaps), "alone": alone}


def batched(items: Iterable, size: int) -> Iterator[tuple]:
    """As `itertools.batched` of Python 3.12."""
    items = iter(items)
    return iter(lambda: tuple(islice(items, size)), ())


def mask_spans(
    ids: np.ndarray, lengths: np.ndarray, tokenizer, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Chooses spans of one to three tokens and masks 80% of their tokens, replaces 10% and keeps 10%.

    A single masked character is too easy to guess from the rest of its word. [CLS] and [SEP] are never chosen.

    Args:
        ids: shape `(pieces, longest)`; `lengths` of shape `(pieces,)` say where each ends.

    Returns:
        Inputs and labels (-100 where nothing is predicted), of the same shape.
    """
    place = np.arange(ids.shape[1])
    eligible = (place < lengths[:, None]) & ~np.isin(ids, (tokenizer.cls_token_id, tokenizer.sep_token_id))
    # A token stays visible if none of the spans that would cover it starts (to first order in their probability).
    start = 1 - (1 - MASK_RATIO) ** (1 / np.dot(SPAN_LENGTHS, SPAN_SHARES))
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


def rarity(pieces: list[np.ndarray], vocabulary: int) -> np.ndarray:
    """Inverse document frequency of each token, `log((n + 1) / (df + 1))`, shape `(vocabulary,)`."""
    documents = np.bincount(np.concatenate([np.unique(piece) for piece in pieces]), minlength=vocabulary)
    return np.log((len(pieces) + 1) / (documents + 1))


def overlap(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> float:
    """Share of tokens that both have, by weight: `2 * common / (first + second)`, from 0 to 1."""
    common = list((Counter(first.tolist()) & Counter(second.tolist())).elements())
    total = weights[first].sum() + weights[second].sum()
    return float(2 * weights[common].sum() / total) if common and total else 0.0


def near_lines(
    first: list[np.ndarray], second: list[np.ndarray], weights: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """For each first line, the number of a second one with similar tokens, other than its own; shape `(lines,)`."""
    table = generator.standard_normal((len(weights), CODE)) * np.sqrt(weights)[:, None]
    table = torch.from_numpy(table.astype(np.float32))

    def codes(pieces: list[np.ndarray]) -> Tensor:  # (lines, CODE)
        starts = torch.from_numpy(np.cumsum([0, *map(len, pieces)])[:-1])
        ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64))
        return normalize(embedding_bag(ids, table, starts, mode="sum"), dim=1)

    similar = codes(first) @ codes(second).T  # (lines, lines)
    similar.fill_diagonal_(-torch.inf)
    nearest = similar.topk(min(NEAREST, len(first)), dim=1).indices.numpy()
    return nearest[np.arange(len(first)), generator.integers(nearest.shape[1], size=len(first))]
