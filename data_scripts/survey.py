"""First pass over the user's own pairs: contradictory and repeated pairs, and the split of each pair.

Pairs are known by hashes of 8 bytes, so that memory does not grow with the length of the texts: among ten million
pairs, two share one with a probability of 3 in a million.
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cosent.data.manifest import SPLITS
from cosent.errors import InputError
from data_scripts.readers import Pair

SHOWN_CONFLICTS = 3


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def pair_hash(pair: Pair, ordered: bool) -> int:
    """Hash of the two sentences of a pair, in either order unless `ordered`."""
    return hash_of("\t".join(pair[:2] if ordered else sorted(pair[:2])))


@dataclass(frozen=True)
class Repetitions:
    """Rows of a split that are there more than once.

    Args:
        repeated: rows beyond the first of each pair and label.
        contradictory: hashes of the pairs with two different labels.
        ordered: whether a pair and its reverse are two pairs, as in NLI.
    """

    repeated: int = 0
    contradictory: frozenset[int] = frozenset()
    ordered: bool = False

    def contradicts(self, pair: Pair) -> bool:
        return bool(self.contradictory) and pair_hash(pair, self.ordered) in self.contradictory


def find_repetitions(pairs: Iterable[Pair], ordered: bool) -> Repetitions:
    hashes, grades = array("Q"), array("f")  # float32, as they will be stored
    for pair in pairs:
        hashes.append(pair_hash(pair, ordered))
        grades.append(pair[2])
    keys, labels = np.frombuffer(hashes, dtype=np.uint64), np.frombuffer(grades, dtype=np.float32)
    order = np.lexsort((labels, keys))
    keys, labels = keys[order], labels[order]
    again = keys[1:] == keys[:-1]
    equal = again & (labels[1:] == labels[:-1])
    return Repetitions(int(equal.sum()), frozenset(map(int, keys[1:][again & ~equal])), ordered)


def contradiction_error(split: str, found: Repetitions, rows: Iterable[tuple[str, Pair]]) -> InputError:
    """The error for contradictory pairs, with the places of the first few among `rows`."""
    shown: dict[int, list[str]] = {}
    texts = {}
    for place, pair in rows:
        key = pair_hash(pair, found.ordered)
        if key in found.contradictory and (key in shown or len(shown) < SHOWN_CONFLICTS):
            texts.setdefault(key, " | ".join(pair[:2]))
            shown.setdefault(key, []).append(f"{pair[2]:g} in {place}")
    listed = "".join(f"\n  {texts[key]}: {'; '.join(places[:6])}" for key, places in shown.items())
    return InputError(
        f"Expected one label for each pair, got pairs of {split} with two different ones, {len(found.contradictory):,} "
        f"in all:{listed}\nTraining would pull such a pair both ways. Correct the rows, or pass --on_conflict drop "
        "(leaves out and counts all rows of these pairs) or keep."
    )


@dataclass(frozen=True)
class Carve:
    """Validation and test pairs taken out of the train files at the user's request."""

    validation_share: float
    test_share: float
    seed: int
    by_sentence: bool = False

    def key(self, group: str, pair: Pair) -> int:
        """Hash of what keeps a pair together with others."""
        return hash_of(pair[0]) if self.by_sentence else self.seeded(group)

    def seeded(self, text: str) -> int:
        return hash_of(f"{self.seed}\t{text}")

    def places(self, pairs: Iterable[tuple[str, Pair]]) -> "Places":
        """The split of every pair, which depends only on the texts and the seed, not on the order of the rows.

        Args:
            pairs: each with the text that keeps it together with others: that of equal pairs, or of a query.

        Raises:
            InputError: a share of the groups rounds to none of them, or to all; or sentences join too many pairs.
        """
        if self.by_sentence:
            return self.places_of_components(pair for _, pair in pairs)
        ranked = np.unique(np.frombuffer(array("Q", (self.key(*one) for one in pairs)), dtype=np.uint64))
        validation, test = self.counts(len(ranked))
        ends = (validation, validation + test)
        return Places(self, dict.fromkeys(ranked[: ends[0]].tolist(), "validation")
                      | dict.fromkeys(ranked[ends[0] : ends[1]].tolist(), "test"))  # fmt: skip

    def counts(self, groups: int) -> tuple[int, int]:
        """Numbers of groups, or of different pairs, for validation and test."""
        validation, test = (round(share * groups) for share in (self.validation_share, self.test_share))
        for name, share, count in (("validation", self.validation_share, validation), ("test", self.test_share, test)):
            if share and not 0 < count <= validation + test < groups:
                raise InputError(
                    f"--{name}_share {share:g} of {groups} different pairs (or queries) is {count} of them. A "
                    "figure on so few means nothing. Give more pairs or another share."
                )
        return validation, test

    def places_of_components(self, pairs: Iterable[Pair]) -> "Places":
        """As `places`: pairs that share a sentence, also through other pairs, go to one split.

        In an order that the seed draws, groups go to validation while they fit into its share of the pairs, then to
        test; the others, and one that is larger than a share, are for training.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        hashes = array("Q", (hash_of(sentence) for pair in pairs for sentence in sorted(pair[:2])))
        different = np.unique(np.frombuffer(hashes, dtype=np.uint64).reshape(-1, 2), axis=0)
        sentences, ends = np.unique(different, return_inverse=True)
        ends = ends.reshape(-1, 2)
        edges = coo_array((np.ones(len(ends), dtype=bool), (ends[:, 0], ends[:, 1])), shape=(len(sentences),) * 2)
        count, group_of = connected_components(edges, directed=False)
        sizes = np.bincount(group_of[ends[:, 0]], minlength=count)
        first = sentences[np.unique(group_of, return_index=True)[1]].tolist()  # a sentence that stands for its group
        room = dict(zip(("validation", "test"), self.counts(len(different)), strict=True))
        splits = {}
        for group in sorted(range(count), key=lambda group: self.seeded(str(first[group]))):
            for split in room:
                if sizes[group] <= room[split]:
                    room[split] -= int(sizes[group])
                    splits[group] = split
                    break
        empty = {"validation": self.validation_share, "test": self.test_share}.items()
        for split, share in empty:
            if share and split not in splits.values():
                raise InputError(
                    f"--split_by sentence: no group of pairs with common sentences fits into a {split} share of "
                    f"{share:g}; the largest has {sizes.max():,} of {len(different):,} different pairs. Give a larger "
                    "share, leave out sentences that many pairs have, or pass --split_by pair."
                )
        held_out = ((sentence, splits.get(group)) for sentence, group in zip(sentences.tolist(), group_of, strict=True))
        return Places(self, {sentence: split for sentence, split in held_out if split is not None})


@dataclass(frozen=True)
class Places:
    """The split of each pair: that of its key, or train where there is none."""

    carve: Carve
    held_out: dict[int, str]

    @property
    def splits(self) -> list[str]:
        shares = {"train": True, "validation": self.carve.validation_share, "test": self.carve.test_share}
        return [split for split in SPLITS if shares[split]]

    def split_of(self, group: str, pair: Pair) -> str:
        return self.held_out.get(self.carve.key(group, pair), "train")
