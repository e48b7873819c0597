"""Build one Parquet file per split from the checked pairs of any source.

Contradictory and repeated pairs of the user's own corpus, and the split of each of its pairs, are found by hashes of 8
bytes a sentence: among ten million, two share one with a probability of 3 in a million.

`datasets` keys its cache by the builder's configuration and notices neither an edited raw file nor edited builder code:
it would return the old rows. So `build` bypasses that cache: every build writes to a fresh folder with its own cache.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from cosent.atomic import sha256_of_file
from cosent.data.corpus import COLUMNS, SPLITS, components, text_key
from cosent.data.labels import NLI_CLASSES
from cosent.errors import InputError

from .pairs import Pair, Tally
from .sources import Source

SHOWN_CONFLICTS, SHOWN_ROWS = 3, 6
LEFT_OUT = -1
ONE_FILE = "1000GB"  # a split is one file, however large: `datasets` would start a second shard at 500 MB


@dataclass
class PairsConfig(datasets.BuilderConfig):
    """Input of a build."""

    source: Source | None = None


class PairsBuilder(datasets.GeneratorBasedBuilder):
    """Builder of the columns sentence1, sentence2 (string) and label (float32), for every source of this project.

    Each file is streamed once. After a build, `tallies` has the counts of each split of the files, and `hashes` the
    pairs of own corpora.
    """

    VERSION = datasets.Version("1.0.0")
    BUILDER_CONFIG_CLASS = PairsConfig

    def _info(self) -> datasets.DatasetInfo:
        types = dict(zip(COLUMNS, ("string", "string", "float32"), strict=True))
        return datasets.DatasetInfo(features=datasets.Features({name: datasets.Value(types[name]) for name in COLUMNS}))

    def _split_generators(self, dl_manager: datasets.DownloadManager) -> list[datasets.SplitGenerator]:
        source = self.config.source
        self.tallies = {split: Tally() for split in source.files}
        self.hashes = {split: PairHashes() for split in source.files if source.on_conflict is not None}
        return [datasets.SplitGenerator(name=split, gen_kwargs={"split": split}) for split in source.files]

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
        hashes = self.hashes.get(split)
        for number, (file, line, pair) in enumerate(self.config.source.pairs(split, self.tallies[split])):
            if hashes is not None:
                hashes.add(file, line, pair)
            yield number, dict(zip(COLUMNS, pair, strict=True))


def build(folder: Path, scratch: Path, source: Source) -> dict[str, Tally]:
    """Writes `{split}.parquet` for every split into `folder` and returns the builder's `tallies`.

    Args:
        folder: an empty folder.
        scratch: an empty folder on the same disk, for the cache and lock files; the caller deletes it.
    """
    builder = PairsBuilder(cache_dir=str(scratch / "cache"), dataset_name="pairs", config_name="pairs", source=source)
    try:
        builder.download_and_prepare(str(scratch / "parquet"), file_format="parquet", max_shard_size=ONE_FILE)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    for split, info in builder.info.splits.items():
        if not info.num_examples:
            raise no_rows(source, split, builder.tallies[split])
        (file,) = (scratch / "parquet").glob(f"pairs-{split}*.parquet")
        if split in builder.hashes:
            places = assign_splits(source, split, builder.hashes[split], builder.tallies[split])
            if not (places == SPLITS.index(split)).any():
                raise no_rows(source, split, builder.tallies[split])
            rows = pyarrow.parquet.read_table(file)
            for place in np.unique(places[places >= 0]):  # those left out have a negative one
                pyarrow.parquet.write_table(rows.filter(pa.array(places == place)), folder / f"{SPLITS[place]}.parquet")
        else:
            file.rename(folder / f"{split}.parquet")
    for split, tally in builder.tallies.items():
        for described, raw in zip(tally.files, source.files[split], strict=True):
            described["sha256"] = sha256_of_file(raw.path) if raw.path.is_file() else None
    return builder.tallies


def no_rows(source: Source, split: str, tally: Tally) -> InputError:
    """The error for a split without a usable row."""
    names = ", ".join(str(file.path) for file in source.files[split])
    bad = [f"; line {row['line']}: {row['reason']}" for row in tally.bad_rows[:1]]
    return InputError(f"The {split} split has no usable row (read: {names}{''.join(bad)}). Name another file.")


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class PairHashes:
    """Hashes of the pairs of a split: the texts, their `text_key`, the label, and the file and line of each."""

    def __init__(self) -> None:
        names = ("first", "second", "first_key", "second_key", "label", "file", "line")
        self.columns = {name: array(type) for name, type in zip(names, "QQQQfHQ", strict=True)}

    def add(self, file: int, line: int, pair: Pair) -> None:
        texts = [hash_of(text) for text in pair[:2]]
        keys = [hash_of(text_key(text)) for text in pair[:2]]
        for column, value in zip(self.columns.values(), (*texts, *keys, pair[2], file, line), strict=True):
            column.append(value)

    def table(self) -> pd.DataFrame:
        """A row per pair; `low` and `high` are the hashes of its texts in order."""
        rows = pd.DataFrame({name: np.asarray(column) for name, column in self.columns.items()})
        rows["low"], rows["high"] = np.minimum(rows["first"], rows["second"]), np.maximum(rows["first"], rows["second"])
        return rows


def assign_splits(source, split: str, hashes: PairHashes, tally: Tally) -> np.ndarray:
    """The place in `SPLITS` of each pair of a split in its order, or `LEFT_OUT`; its counts go to `tally`."""
    rows = hashes.table()
    pair = ["first", "second"] if source.corpus.label_kind == "nli" else ["low", "high"]
    tally.repeated = int(rows.duplicated([*pair, "label"]).sum())
    conflicting = rows.groupby(pair)["label"].transform("nunique") > 1
    tally.contradictory = len(rows.loc[conflicting, pair].drop_duplicates())
    splits = np.full(len(rows), SPLITS.index(split), dtype=np.int8)
    if tally.contradictory and source.on_conflict == "error":
        names = NLI_CLASSES if source.corpus.label_kind == "nli" else ()
        conflicts = rows[conflicting].groupby(pair, sort=False)
        raise contradiction_error(split, source.files[split], tally.contradictory, conflicts, names)
    usable = ~conflicting if source.on_conflict == "drop" else np.full(len(rows), True)
    if not usable.all():
        tally.left_out["contradictory pair"] = int((~usable).sum())
    if usable.any() and any(source.shares.values()):
        splits[usable], warnings = carve(rows[usable], source.shares, source.unit)
        source.warnings += warnings
    splits[~usable] = LEFT_OUT
    return splits


def contradiction_error(split: str, files: list, count: int, conflicts, names: Sequence[str]) -> InputError:
    """The error for contradictory pairs, with the lines of the first few; `names` are the names of NLI classes."""
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


def carve(rows: pd.DataFrame, shares: dict[str, float], unit: str) -> tuple[np.ndarray, list[str]]:
    """The place in `SPLITS` of each row, which depends on their texts and not on their order; and warnings.

    In an order that hashes draw, and in which each stretch has its share of every label, groups go to validation while
    they fit into its share of the different pairs, then to test; the others, and one that is larger than a share, are
    for training. The label of a group is its highest.

    Args:
        rows: a part of `PairHashes.table`.
        unit: what makes a group: equal pairs (`pair`), those of a `query`, or all that share sentences, also through
            other pairs (`sentence`); sentences with one `text_key` count as equal.
    """
    pair = rows.groupby(["low", "high"], sort=False).ngroup()
    keys, sentences = np.unique(rows[["first_key", "second_key"]], return_inverse=True)
    first, second = sentences.reshape(-1, 2).T
    if unit == "query":
        group = first
    elif unit == "sentence":
        group = components(first, second, len(keys))[first]
    else:
        group = np.minimum(first, second) * len(keys) + np.maximum(first, second)
    group = np.unique(group, return_inverse=True)[1]
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
    warnings = []
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
        if room[split] > share * different / 3:
            size = round(share * different) - room[split]
            warnings.append(
                f"{split} has {size:,} of {different:,} different pairs, {size / different:.1%} where --{split}_share "
                f"asks for {share:.1%}: larger groups, which stay together, are in train."
            )
    return split_of[group], warnings
