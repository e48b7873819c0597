"""Build one Parquet file per split from the checked pairs of any source.

`datasets` keys its cache by the builder's configuration and notices neither an edited raw file nor edited builder code:
it would return the old rows. So `build` bypasses that cache: every build writes to a fresh folder with its own cache.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from cosent.data.manifest import COLUMNS, SPLITS
from cosent.errors import InputError
from cosent.seal import sha256_of_file

from .pairs import Tally
from .sources import Source
from .splits import PairHashes, assign_splits

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
            distribute(file, places, folder)
        else:
            file.rename(folder / f"{split}.parquet")
    for split, tally in builder.tallies.items():
        for described, raw in zip(tally.files, source.files[split], strict=True):
            described["sha256"] = sha256_of_file(raw.path) if raw.path.is_file() else None
    return builder.tallies


def distribute(file: Path, places: np.ndarray, folder: Path) -> None:
    """Writes each row of a Parquet file to the file of its split, a place in `SPLITS`; others are left out."""
    (split, *others), start = np.unique(places), 0
    if not others:
        file.rename(folder / f"{SPLITS[split]}.parquet")
        return
    with pyarrow.parquet.ParquetFile(file) as rows, ExitStack() as stack:
        writers = {
            place: stack.enter_context(
                pyarrow.parquet.ParquetWriter(folder / f"{SPLITS[place]}.parquet", rows.schema_arrow)
            )
            for place in np.unique(places[places >= 0])
        }
        for batch in rows.iter_batches():
            places_of_batch = places[start : start + len(batch)]
            start += len(batch)
            for place, writer in writers.items():
                writer.write_batch(batch.filter(pa.array(places_of_batch == place)))


def no_rows(source: Source, split: str, tally: Tally) -> InputError:
    """The error for a split without a usable row."""
    names = ", ".join(str(file.path) for file in source.files[split])
    bad = [f"; line {row['line']}: {row['reason']}" for row in tally.bad_rows[:1]]
    return InputError(f"The {split} split has no usable row (read: {names}{''.join(bad)}). Name another file.")
