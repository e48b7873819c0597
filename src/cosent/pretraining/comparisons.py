"""Batches of lines on their own and of joined lines, for an encoder that becomes a bi- or a cross-encoder."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.functional import embedding_bag, normalize

from cosent.errors import InputError
from cosent.pretraining.batches import NeighbourBatches, batched

POOL = 2000  # pairs of pieces among which near lines are found
NEAREST = 8  # a near line is one of so many
LONGEST = 40  # tokens of each line that is joined; longer ones lose their end
MASKED_SHARE = 1 / 3  # of the joined inputs: they are predicted, the others compared
CODE = 128  # numbers by which near lines are found


class ComparedBatches(NeighbourBatches):
    """Batches of `NeighbourBatches` in turn with batches of joined lines, `[CLS] a [SEP] b [SEP]`.

    A line is joined with its neighbour, with a line that shares many tokens with it, or with a random one, each a third
    of the time. A third of the joined inputs is masked, and the others come with the share of tokens that both lines
    have in common. Two batches of one step should be one of each: set `gradient_accumulation_steps` to 2.
    """

    def __iter__(self) -> Iterator[dict]:
        if "token_type_ids" not in self.tokenizer.model_input_names:
            raise InputError("--compare_weight needs segment ids, but this tokenizer has none. Set it to 0.")
        generator = np.random.default_rng([self.seed, self.rank])
        lines, joined = [], []
        for pool in batched(self.shuffled(generator), POOL):
            lines += pool
            joined += self.joined(pool, generator)
            while (alone := self.enough(lines, 4)) and (together := self.enough(joined, 3)):
                yield self.collate(lines[:alone], generator)
                yield self.compare(joined[:together], generator)
                del lines[:alone], joined[:together]

    def enough(self, pairs: list[tuple], special: int) -> int:
        """Number of pairs, each with so many special tokens, that make a batch; 0 if there are too few."""
        sizes = np.cumsum([len(pair[0]) + len(pair[1]) + special for pair in pairs])
        full = int(np.searchsorted(sizes, self.batch_tokens))
        return full + 1 if full < len(sizes) else 0

    def joined(self, pool: tuple[tuple, ...], generator: np.random.Generator) -> list[tuple]:
        """Lines to join: `(first, second, overlap)`, one for each pair of the pool."""
        longest = min(LONGEST, (self.max_length - 3) // 2)
        first, second = ([pair[side][:longest] for pair in pool] for side in (0, 1))
        weights = rarity(first + second, len(self.tokenizer))
        near = near_lines(first, second, weights, generator)
        anywhere = generator.integers(len(pool), size=len(pool))
        kind = generator.integers(3, size=len(pool))
        others = np.choose(kind, [np.arange(len(pool)), near, anywhere])
        return [(a, second[other], overlap(a, second[other], weights)) for a, other in zip(first, others, strict=True)]

    def compare(self, joined: list[tuple], generator: np.random.Generator) -> dict:
        """Packed `rows` of joined lines, the first third masked, with what is needed to compare the others.

        Returns:
            Also `overlaps` of shape `(pairs,)`, NaN for masked ones, and `alone`: packed rows of the lines on their
            own, first and second line of each pair in turn, without masks.
        """
        cls, sep = self.tokenizer.cls_token_id, self.tokenizer.sep_token_id
        masked = round(MASKED_SHARE * len(joined))
        swap = generator.random(len(joined)) >= 0.5
        pairs = [(b, a) if swapped else (a, b) for (a, b, _), swapped in zip(joined, swap, strict=True)]
        rows = self.rows([[cls, *a, sep, *b, sep] for a, b in pairs], generator, masked=masked)
        alone = self.rows([[cls, *piece, sep] for pair in pairs for piece in pair], generator, masked=0)
        overlaps = np.array([shared for _, _, shared in joined], dtype=np.float32)
        overlaps[:masked] = np.nan
        del alone["labels"]
        return rows | {"overlaps": torch.from_numpy(overlaps), "alone": alone}


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
    codes = [bags(pieces, torch.from_numpy(table.astype(np.float32))) for pieces in (first, second)]
    similar = codes[0] @ codes[1].T  # (lines, lines)
    similar.fill_diagonal_(-torch.inf)
    nearest = similar.topk(min(NEAREST, len(first)), dim=1).indices.numpy()
    return nearest[np.arange(len(first)), generator.integers(nearest.shape[1], size=len(first))]


def bags(pieces: list[np.ndarray], table: torch.Tensor) -> torch.Tensor:
    """Unit vectors of the sums of the rows that each piece names, shape `(pieces, CODE)`."""
    starts = np.cumsum([0, *map(len, pieces)])[:-1]
    ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64))
    return normalize(embedding_bag(ids, table, torch.from_numpy(starts), mode="sum"), dim=1)
