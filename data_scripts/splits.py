"""First pass over the user's own pairs: contradictory and repeated pairs, and the split of each pair.

Pairs are known by hashes of 8 bytes, so that memory does not grow with the length of the texts: among ten million
pairs, two share one with a probability of 3 in a million.
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cosent.errors import InputError
from data_scripts.pairs import Pair

SHOWN_CONFLICTS = 3


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


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

    def key(self, pair: Pair) -> int:
        """Hash of the two sentences of a pair, in either order unless `ordered`."""
        return hash_of("\t".join(pair[:2] if self.ordered else sorted(pair[:2])))

    def contradicts(self, pair: Pair) -> bool:
        return bool(self.contradictory) and self.key(pair) in self.contradictory


def find_repetitions(pairs: Iterable[Pair], ordered: bool) -> Repetitions:
    hashes, grades = array("Q"), array("f")  # float32, as they will be stored
    key = Repetitions(ordered=ordered).key
    for pair in pairs:
        hashes.append(key(pair))
        grades.append(pair[2])
    keys, labels = np.frombuffer(hashes, dtype=np.uint64), np.frombuffer(grades, dtype=np.float32)
    order = np.lexsort((labels, keys))
    keys, labels = keys[order], labels[order]
    again = keys[1:] == keys[:-1]
    equal = again & (labels[1:] == labels[:-1])
    return Repetitions(int(equal.sum()), frozenset(map(int, keys[1:][again & ~equal])), ordered)


def contradiction_error(split: str, repetitions: Repetitions, rows: Iterable[tuple[str, Pair]]) -> InputError:
    """The error for contradictory pairs, with the places of the first few among `rows`."""
    shown: dict[int, list[str]] = {}
    texts = {}
    for where, pair in rows:
        key = repetitions.key(pair)
        if key in repetitions.contradictory and (key in shown or len(shown) < SHOWN_CONFLICTS):
            texts.setdefault(key, " | ".join(pair[:2]))
            shown.setdefault(key, []).append(f"{pair[2]:g} in {where}")
    listed = "".join(f"\n  {texts[key]}: {'; '.join(places[:6])}" for key, places in shown.items())
    return InputError(
        f"{len(repetitions.contradictory):,} pairs of {split} have two different labels, among them:{listed}\nCorrect "
        "the rows, or pass --on_conflict drop (leaves out and counts all rows of these pairs) or keep."
    )


@dataclass(frozen=True)
class Carve:
    """Validation and test pairs taken out of the train files at the user's request."""

    validation_share: float
    test_share: float
    seed: int
    by_sentence: bool = False

    @property
    def shares(self) -> dict[str, float]:
        return {"validation": self.validation_share, "test": self.test_share}

    @property
    def splits(self) -> list[str]:
        return ["train", *(split for split, share in self.shares.items() if share)]

    def key(self, group: str, pair: Pair) -> int:
        """Hash of what keeps a pair together with others."""
        return hash_of(pair[0]) if self.by_sentence else self.seeded(group)

    def seeded(self, text: str) -> int:
        return hash_of(f"{self.seed}\t{text}")

    def held_out(self, pairs: Iterable[tuple[str, Pair]]) -> dict[int, str]:
        """The split by `key` of all pairs that are not for training; it depends on texts and seed, not on their order.

        Args:
            pairs: each with the text that keeps it together with others: that of equal pairs, or of a query.
        """
        if self.by_sentence:
            return self._held_out_components(pair for _, pair in pairs)
        ranked = np.unique(np.frombuffer(array("Q", (self.key(*one) for one in pairs)), dtype=np.uint64))
        held_out, start = {}, 0
        for split, count in self._counts(len(ranked)).items():
            held_out |= dict.fromkeys(ranked[start : start + count].tolist(), split)
            start += count
        return held_out

    def _counts(self, groups: int) -> dict[str, int]:
        """Numbers of groups, or of different pairs, for validation and test."""
        counts = {split: round(share * groups) for split, share in self.shares.items()}
        for split, share in self.shares.items():
            if share and not 0 < counts[split] <= sum(counts.values()) < groups:
                raise InputError(
                    f"--{split}_share {share:g} of {groups} different pairs (or queries) is {counts[split]} of them. "
                    "Give more pairs or another share."
                )
        return counts

    def _held_out_components(self, pairs: Iterable[Pair]) -> dict[int, str]:
        """As `held_out`: pairs that share a sentence, also through other pairs, go to one split.

        In an order that the seed draws, groups go to validation while they fit into its share of the pairs, then to
        test; the others, and one that is larger than a share, are for training.
        """
        from cosent.data.groups import components

        hashes = array("Q", (hash_of(sentence) for pair in pairs for sentence in sorted(pair[:2])))
        different = np.unique(np.frombuffer(hashes, dtype=np.uint64).reshape(-1, 2), axis=0)
        sentences, ends = np.unique(different, return_inverse=True)
        first, second = ends.reshape(-1, 2).T
        group_of = components(first, second, len(sentences))
        sizes = np.bincount(group_of[first])
        names = sentences[np.unique(group_of, return_index=True)[1]].tolist()  # a sentence that stands for its group
        room = self._counts(len(different))
        split_of: dict[int, str] = {}
        for group in sorted(range(len(sizes)), key=lambda group: self.seeded(str(names[group]))):
            split = next((split for split in room if sizes[group] <= room[split]), None)
            if split is not None:
                room[split] -= int(sizes[group])
                split_of[group] = split
        for split, share in self.shares.items():
            if share and split not in split_of.values():
                raise InputError(
                    f"--split_by sentence: no group of pairs with common sentences fits into a {split} share of "
                    f"{share:g}; the largest has {sizes.max():,} of {len(different):,} different pairs. Give a larger "
                    "share, or pass --split_by pair."
                )
        groups = zip(sentences.tolist(), group_of.tolist(), strict=True)
        return {sentence: split_of[group] for sentence, group in groups if group in split_of}
