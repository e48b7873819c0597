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
from cosent.schema import SPLITS
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

    def hash_of(self, group: str) -> int:
        return hash_of(f"{self.seed}\t{group}")

    def places(self, groups: Iterable[str]) -> "Places":
        """The split of every group, which depends only on the texts and the seed, not on the order of the rows.

        Args:
            groups: the text of each pair that keeps it together with others: equal pairs, or those of a query.

        Raises:
            InputError: a share of the groups rounds to none of them, or to all.
        """
        ranked = np.unique(np.frombuffer(array("Q", map(self.hash_of, groups)), dtype=np.uint64))
        validation, test = (round(share * len(ranked)) for share in (self.validation_share, self.test_share))
        for name, share, count in (("validation", self.validation_share, validation), ("test", self.test_share, test)):
            if share and not 0 < count <= validation + test < len(ranked):
                raise InputError(
                    f"--{name}_share {share:g} of {len(ranked)} different pairs (or queries) is {count} of them. A "
                    "figure on so few means nothing. Give more pairs or another share."
                )
        return Places(self, *(int(ranked[count]) for count in (validation, validation + test)))


@dataclass(frozen=True)
class Places:
    """Split of each group: hashes below `validation_end` are validation, those from there to `test_end` test."""

    carve: Carve
    validation_end: int
    test_end: int

    @property
    def splits(self) -> list[str]:
        shares = {"train": True, "validation": self.carve.validation_share, "test": self.carve.test_share}
        return [split for split in SPLITS if shares[split]]

    def split_of(self, group: str) -> str:
        found = self.carve.hash_of(group)
        return "validation" if found < self.validation_end else "test" if found < self.test_end else "train"
