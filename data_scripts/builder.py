"""Build one Parquet file per split from the checked pairs of any source.

`datasets` keys its cache by the builder's configuration and notices neither an edited raw file nor edited builder code:
it would return the old rows. So `build` bypasses that cache: every build writes to a fresh folder with its own cache.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import datasets

from cosent.errors import InputError
from cosent.schema import COLUMNS, SPLITS, sha256_of_file
from data_scripts.checks import LabelRange
from data_scripts.readers import Layout, Record, Tally, read_pairs, read_records

VERSION = "1.0.0"
ONE_FILE = "1000GB"  # a split is one file, however large: `datasets` would start a second shard at 500 MB


@dataclass(frozen=True)
class RawFile:
    """One raw file of a split; `records` replaces reading `path` for sources that are not files (demo, Hub)."""

    path: Path
    layout: Layout
    records: Callable[[], Iterator[Record]] | None = None

    def sha256(self) -> str:
        if self.records is None:
            return sha256_of_file(self.path)
        digest = hashlib.sha256()
        for _, text, _ in self.records():
            digest.update(text.encode("utf-8", errors="surrogateescape") + b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class Carve:
    """Validation and test pairs taken out of the train files at the user's request."""

    validation_share: float
    test_share: float
    seed: int

    def split_of(self, pairs: list[tuple[str, str, float]]) -> list[str]:
        """The split of each pair, which depends only on the texts and the seed, not on the order of the rows.

        Equal pairs, in either order, stay together, so that no pair is in two splits.

        Raises:
            InputError: a share of these pairs rounds to none of them, or to all.
        """
        keys = ["\t".join(sorted(pair[:2])) for pair in pairs]
        ranked = sorted(set(keys), key=lambda key: hashlib.sha256(f"{self.seed}\t{key}".encode()).digest())
        validation, test = (round(share * len(ranked)) for share in (self.validation_share, self.test_share))
        for name, share, count in (("validation", self.validation_share, validation), ("test", self.test_share, test)):
            if share and not 0 < count < len(ranked) - 1:
                raise InputError(
                    f"--{name}_share {share:g} of {len(ranked)} different pairs is {count} pairs. A figure on "
                    "so few means nothing. Give more pairs or another share."
                )
        split = dict.fromkeys(ranked, "train") | dict.fromkeys(ranked[:validation], "validation")
        split |= dict.fromkeys(ranked[validation : validation + test], "test")
        return [split[key] for key in keys]


@dataclass
class PairsConfig(datasets.BuilderConfig):
    """Input of a build: raw files by split, the labels they may hold, and the handling of bad rows."""

    files: dict[str, list[RawFile]] = field(default_factory=dict)
    labels: LabelRange | None = None
    on_bad_rows: str = "error"
    carve: Carve | None = None


class PairsBuilder(datasets.GeneratorBasedBuilder):
    """Builder of the columns sentence1, sentence2 (string) and label (float32), for every source of this project.

    After a build, `tallies` holds the counts of each split.
    """

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = PairsConfig

    def _info(self) -> datasets.DatasetInfo:
        types = dict(zip(COLUMNS, ("string", "string", "float32"), strict=True))
        return datasets.DatasetInfo(features=datasets.Features({name: datasets.Value(types[name]) for name in COLUMNS}))

    def _split_generators(self, dl_manager: datasets.DownloadManager) -> list[datasets.SplitGenerator]:
        self.tallies = {split: Tally() for split in self.config.files}
        pairs = {split: self._read(split) for split in self.config.files}
        if self.config.carve:
            everything = list(pairs["train"])
            places = self.config.carve.split_of(everything)
            pairs = {
                split: iter([pair for pair, place in zip(everything, places, strict=True) if place == split])
                for split in SPLITS
                if split in places
            }
        return [datasets.SplitGenerator(name=split, gen_kwargs={"pairs": rows}) for split, rows in pairs.items()]

    def _read(self, split: str) -> Iterator[tuple[str, str, float]]:
        tally = self.tallies[split]
        for file in self.config.files[split]:
            tally.files.append({"name": "/".join(file.path.parts[-2:]), "sha256": file.sha256(), "rows": 0})
            records = file.records() if file.records else read_records(file.path, file.layout.format)
            yield from read_pairs(
                str(file.path), records, file.layout, self.config.labels, tally, self.config.on_bad_rows
            )

    def _generate_examples(self, pairs: Iterator[tuple[str, str, float]]) -> Iterator[tuple[int, dict]]:
        for key, pair in enumerate(pairs):
            yield key, dict(zip(COLUMNS, pair, strict=True))


def build(folder: Path, scratch: Path, config: dict) -> dict[str, Tally]:
    """Writes `{split}.parquet` for every split into `folder` and returns the counts of what was read.

    Args:
        folder: an empty folder.
        scratch: an empty folder on the same disk, for the cache and lock files; the caller deletes it.
        config: the fields of `PairsConfig`.

    Returns:
        `dict[str, Tally]`: by split of the source files (a carved corpus has only `train`).

    Raises:
        InputError: a bad row, or a split without a single usable row.
    """
    builder = PairsBuilder(cache_dir=str(scratch / "cache"), dataset_name="pairs", config_name="pairs", **config)
    try:
        builder.download_and_prepare(str(scratch / "parquet"), file_format="parquet", max_shard_size=ONE_FILE)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    for split, info in builder.info.splits.items():
        if not info.num_examples:
            names = ", ".join(str(file.path) for file in config["files"][split])
            raise InputError(
                f"The {split} split has no usable row (read: {names}). A model would train or be measured on nothing. "
                "Check that this is the right file, with its --format and --label_kind."
            )
        (file,) = (scratch / "parquet").glob(f"pairs-{split}*.parquet")
        file.rename(folder / f"{split}.parquet")
    return builder.tallies
