"""Build one Parquet file per split from the checked pairs of any source.

`datasets` keys its cache by the builder's configuration and notices neither an edited raw file nor edited builder code:
it would return the old rows. So `build` bypasses that cache: every build writes to a fresh folder with its own cache.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets

from cosent.data.manifest import COLUMNS, SPLITS
from cosent.errors import InputError
from cosent.seal import sha256_of_file

from .pairs import Tally
from .sources import Source
from .splits import assign_splits

VERSION = "1.0.0"
ONE_FILE = "1000GB"  # a split is one file, however large: `datasets` would start a second shard at 500 MB


@dataclass
class PairsConfig(datasets.BuilderConfig):
    """Input of a build."""

    source: Source | None = None


class PairsBuilder(datasets.GeneratorBasedBuilder):
    """Builder of the columns sentence1, sentence2 (string) and label (float32), for every source of this project.

    The files are streamed: own pairs once to assign splits, and all once for each split. After a build, `tallies` holds
    the counts of each split of the files (a carved corpus has only `train`).
    """

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = PairsConfig

    def _info(self) -> datasets.DatasetInfo:
        types = dict(zip(COLUMNS, ("string", "string", "float32"), strict=True))
        return datasets.DatasetInfo(features=datasets.Features({name: datasets.Value(types[name]) for name in COLUMNS}))

    def _split_generators(self, dl_manager: datasets.DownloadManager) -> list[datasets.SplitGenerator]:
        source = self.config.source
        self.tallies = {split: Tally() for split in source.files}
        self.assigned = {}
        if source.on_conflict is not None:
            self.assigned = {split: assign_splits(source, split, tally) for split, tally in self.tallies.items()}
        splits = [*source.files, *(split for split, share in source.shares.items() if share)]
        return [datasets.SplitGenerator(name=split, gen_kwargs={"split": split}) for split in splits]

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
        origin = split if split in self.tallies else "train"  # a carved split is read, and counted, with train
        assigned = self.assigned.get(origin)
        tally = self.tallies[origin] if split == origin else Tally()
        for number, (_, _, pair) in enumerate(self.config.source.pairs(origin, tally)):
            if assigned is None or assigned[number] == SPLITS.index(split):
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
            names = ", ".join(str(file.path) for file in source.files[split])
            bad = [f"; line {row['line']}: {row['reason']}" for row in builder.tallies[split].bad_rows[:1]]
            raise InputError(f"The {split} split has no usable row (read: {names}{''.join(bad)}). Name another file.")
        (file,) = (scratch / "parquet").glob(f"pairs-{split}*.parquet")
        file.rename(folder / f"{split}.parquet")
    for split, tally in builder.tallies.items():
        for described, raw in zip(tally.files, source.files[split], strict=True):
            described["sha256"] = sha256_of_file(raw.path) if raw.path.is_file() else None
    return builder.tallies
