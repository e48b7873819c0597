"""First pass over the user's own pairs: contradictory and repeated pairs, and the split of each.

Sentences are known by hashes of 8 bytes, so that memory does not grow with the length of the texts: among ten million,
two share one with a probability of 3 in a million.
"""

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
import pandas as pd

from cosent.data.manifest import NLI_CLASSES, SPLITS
from cosent.errors import InputError

from .pairs import Tally

SHOWN_CONFLICTS, SHOWN_ROWS = 3, 6
LEFT_OUT = -1


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def assign_splits(source, split: str, tally: Tally) -> np.ndarray:
    """The place in `SPLITS` of each pair of a split in its order, or `LEFT_OUT`; its counts go to `tally`."""
    columns = {"first": array("Q"), "second": array("Q"), "label": array("f"), "file": array("H"), "line": array("Q")}
    for file, line, (sentence1, sentence2, label) in source.pairs(split, Tally()):
        values = hash_of(sentence1), hash_of(sentence2), label, file, line
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    rows = pd.DataFrame({name: np.asarray(column) for name, column in columns.items()})
    rows["low"], rows["high"] = np.minimum(rows["first"], rows["second"]), np.maximum(rows["first"], rows["second"])
    pair = ["first", "second"] if source.corpus.label_kind == "nli" else ["low", "high"]
    tally.repeated = int(rows.duplicated([*pair, "label"]).sum())
    conflicting = rows.groupby(pair)["label"].transform("nunique") > 1
    tally.contradictory = len(rows.loc[conflicting, pair].drop_duplicates())
    splits = np.full(len(rows), SPLITS.index(split), dtype=np.int8)
    if tally.contradictory and source.on_conflict == "error":
        names = NLI_CLASSES if source.corpus.label_kind == "nli" else ()
        raise contradiction_error(
            split, source.files[split], tally.contradictory, rows[conflicting].groupby(pair, sort=False), names
        )
    kept = ~conflicting if source.on_conflict == "drop" else np.full(len(rows), True)
    if not kept.all():
        tally.left_out["contradictory pair"] = int((~kept).sum())
    if kept.any() and any(source.shares.values()):
        splits[kept] = carve(rows[kept], source.shares, source.unit)
    splits[~kept] = LEFT_OUT
    return splits


def contradiction_error(split: str, files: list, count: int, conflicts, names: Sequence[str]) -> InputError:
    """The error for contradictory pairs, with the lines of the first few; `names` are those of labels, if any."""
    listed = ""
    for _, rows in list(conflicts)[:SHOWN_CONFLICTS]:
        places = []
        for row in rows.head(SHOWN_ROWS).itertuples():
            label = names[int(row.label)] if names else f"{row.label:g}"
            places.append(f"{label} in {files[row.file].place(row.line)}")
        listed += f"\n  {'; '.join(places)}"
    return InputError(
        f"{count:,} pairs of {split} have two different labels, among them:{listed}\nCorrect the rows, or pass "
        "--on_conflict drop (leaves out and counts all rows of these pairs) or keep."
    )


def carve(rows: pd.DataFrame, shares: dict[str, float], unit: str) -> np.ndarray:
    """The place in `SPLITS` of each row; it depends on their texts, not on their order.

    In an order that hashes draw, and in which each stretch has its share of every label, groups go to validation while
    they fit into its share of the different pairs, then to test; the others, and one that is larger than a share, are
    for training. The label of a group is its highest.

    Args:
        rows: with `label`, the hashes `first` and `second`, and these in order as `low` and `high`.
        unit: what makes a group: equal pairs (`pair`), those of a `query`, or all that share sentences, also through
            other pairs (`sentence`).
    """
    from cosent.data.groups import components

    pair = rows.groupby(["low", "high"], sort=False).ngroup()
    group = pair.to_numpy()
    if unit == "query":
        group = pd.factorize(rows["first"])[0]
    elif unit == "sentence":
        sentences, ends = np.unique(rows[["low", "high"]], return_inverse=True)
        low, high = ends.reshape(-1, 2).T
        group = components(low, high, len(sentences))[low]
    drawn = pd.DataFrame({"pair": pair, "key": pd.util.hash_pandas_object(rows[["low", "high"]], index=False)})
    groups = (
        drawn.assign(label=rows["label"])
        .groupby(group)
        .agg(size=("pair", "nunique"), key=("key", "min"), label=("label", "max"))
        .sort_values("key")
    )
    of_label = groups.groupby("label")["key"]
    order = (of_label.cumcount() + 0.5) / of_label.transform("size")
    groups = groups.loc[order.sort_values(kind="stable").index]
    different = int(groups["size"].sum())
    room = {split: round(share * different) for split, share in shares.items()}
    split_of = np.zeros(len(groups), dtype=np.int8)  # 0: train
    for number, size in groups["size"].items():
        split = next((split for split in room if size <= room[split]), None)
        if split is not None:
            room[split] -= size
            split_of[number] = SPLITS.index(split)
    for split, share in shares.items():
        if share and not {0, SPLITS.index(split)} <= set(split_of):
            largest = groups["size"].max() if different else 0
            reason = f"that is {round(share * different)} of them"
            if largest > 1:
                reason += f", and the largest group that stays together by --split_by has {largest:,}"
            raise InputError(
                f"--{split}_share {share:g} of {different:,} different pairs cannot be taken: {reason}. Give more "
                "pairs or another share."
            )
    return split_of[group]
