"""Build one Parquet file per split from the checked pairs of any source.

`datasets` keys its cache by the builder's configuration and notices neither an edited raw file nor edited builder code:
it would return the old rows. So `build` bypasses that cache: every build writes to a fresh folder with its own cache.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import datasets

from cosent.data.files import AS_USUAL, FileOptions, Record, place, read_records
from cosent.data.manifest import COLUMNS, sha256_of_file
from cosent.errors import InputError
from data_scripts.checks import LabelRange
from data_scripts.readers import Pair, Shape, Tally, read_pairs
from data_scripts.survey import Carve, Places, Repetitions, contradiction_error, find_repetitions

VERSION = "1.0.0"
ONE_FILE = "1000GB"  # a split is one file, however large: `datasets` would start a second shard at 500 MB


@dataclass(frozen=True)
class RawFile:
    """One raw file of a split; `records` replaces reading `path` for sources that are not files (demo, Hub)."""

    path: Path
    shape: Shape
    records: Callable[[], Iterator[Record]] | None = None
    options: FileOptions = AS_USUAL

    def sha256(self) -> str:
        if self.records is None:
            return sha256_of_file(self.path)
        digest = hashlib.sha256()
        for _, text, _ in self.records():
            digest.update(text.encode("utf-8", errors="surrogateescape") + b"\n")
        return digest.hexdigest()

    def from_file(self) -> Iterator[Record]:
        return read_records(self.path, self.shape.format, options=self.options)

    def read(self, labels: LabelRange, tally: Tally, on_bad_rows: str) -> Iterator[tuple[int, Pair]]:
        """The checked pairs and their lines, as `read_pairs`."""
        tally.files.append({"name": "/".join(self.path.parts[-2:]), "rows": 0})
        records = self.records() if self.records else self.from_file()
        return read_pairs(str(self.path), records, self.shape, labels, tally, on_bad_rows)


@dataclass(frozen=True)
class Rows:
    """The rows of one corpus: raw files by split, and what is done with them.

    Args:
        labels: labels that the rows may hold.
        on_bad_rows: `error` or `skip`.
        on_conflict: `error`, `drop` or `keep` for pairs with two different labels; None does not look for them.
        carve: shares to take out of the train split.
    """

    files: dict[str, list[RawFile]]
    labels: LabelRange
    on_bad_rows: str = "error"
    on_conflict: str | None = None
    carve: Carve | None = None

    def lines(self, split: str, tally: Tally | None = None) -> Iterator[tuple[RawFile, int, Pair]]:
        """File, line and pair of every usable row of a split, counted in `tally`."""
        tally = Tally() if tally is None else tally
        for file in self.files[split]:
            for line, pair in file.read(self.labels, tally, self.on_bad_rows):
                yield file, line, pair

    def repetitions(self, split: str) -> Repetitions:
        """Repeated and contradictory pairs of a split; nothing is found where nothing is looked for.

        Raises:
            InputError: a bad row, or contradictory pairs.
        """
        if self.on_conflict is None:
            return Repetitions()
        found = find_repetitions((pair for _, _, pair in self.lines(split)), self.labels.kind == "nli")
        if found.contradictory and self.on_conflict == "error":
            lines = self.lines(split)
            rows = ((place(file.path, file.shape.format, line), pair) for file, line, pair in lines)
            raise contradiction_error(split, found, rows)
        return found

    def kept(self, split: str, repeated: Repetitions, tally: Tally | None = None) -> Iterator[tuple[str, Pair]]:
        """The pairs of a split that are kept, each with its group."""
        tally = Tally() if tally is None else tally
        for file, _, pair in self.lines(split, tally):
            if self.on_conflict == "drop" and repeated.contradicts(pair):
                tally.left_out["contradictory pair"] += 1
            else:
                yield file.shape.group(pair), pair


@dataclass
class PairsConfig(datasets.BuilderConfig):
    """Input of a build; `repetitions` by split of the files, `places` if the train split is carved."""

    rows: Rows | None = None
    repetitions: dict[str, Repetitions] = field(default_factory=dict)
    places: Places | None = None


class PairsBuilder(datasets.GeneratorBasedBuilder):
    """Builder of the columns sentence1, sentence2 (string) and label (float32), for every source of this project.

    After a build, `tallies` holds the counts of each split of the files.
    """

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = PairsConfig

    def _info(self) -> datasets.DatasetInfo:
        types = dict(zip(COLUMNS, ("string", "string", "float32"), strict=True))
        return datasets.DatasetInfo(features=datasets.Features({name: datasets.Value(types[name]) for name in COLUMNS}))

    def _split_generators(self, dl_manager: datasets.DownloadManager) -> list[datasets.SplitGenerator]:
        self.tallies = {split: Tally() for split in self.config.rows.files}
        splits = self.config.places.splits if self.config.places else self.tallies
        return [datasets.SplitGenerator(name=split, gen_kwargs={"split": split}) for split in splits]

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict]]:
        places = self.config.places
        source = "train" if places else split  # a carved split is read, and counted, with train
        tally = self.tallies[source] if split == source else None
        kept = self.config.rows.kept(source, self.config.repetitions[source], tally)
        pairs = (pair for group, pair in kept if not places or places.split_of(group, pair) == split)
        for key, pair in enumerate(pairs):
            yield key, dict(zip(COLUMNS, pair, strict=True))


def build(folder: Path, scratch: Path, rows: Rows) -> dict[str, Tally]:
    """Writes `{split}.parquet` for every split into `folder` and returns the counts of what was read.

    The files are streamed: read once to find contradictory pairs, once to carve, and once for each split.

    Args:
        folder: an empty folder.
        scratch: an empty folder on the same disk, for the cache and lock files; the caller deletes it.

    Returns:
        `dict[str, Tally]`: by split of the source files (a carved corpus has only `train`).

    Raises:
        InputError: a bad row, contradictory pairs, or a split without a single usable row.
    """
    repetitions = {split: rows.repetitions(split) for split in rows.files}
    places = rows.carve and rows.carve.places(rows.kept("train", repetitions["train"]))
    config = {"rows": rows, "repetitions": repetitions, "places": places}
    builder = PairsBuilder(cache_dir=str(scratch / "cache"), dataset_name="pairs", config_name="pairs", **config)
    try:
        builder.download_and_prepare(str(scratch / "parquet"), file_format="parquet", max_shard_size=ONE_FILE)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    for split, info in builder.info.splits.items():
        if not info.num_examples:
            names = ", ".join(str(file.path) for file in rows.files[split])
            bad = [f"; line {row['line']}: {row['reason']}" for row in builder.tallies[split].bad_rows[:1]]
            raise InputError(
                f"The {split} split has no usable row (read: {names}{''.join(bad)}). A model would train or be "
                "measured on nothing. Check that this is the right file, with its --format and --label_kind."
            )
        (file,) = (scratch / "parquet").glob(f"pairs-{split}*.parquet")
        file.rename(folder / f"{split}.parquet")
    for split, tally in builder.tallies.items():
        tally.repeated, tally.contradictory = repetitions[split].repeated, len(repetitions[split].contradictory)
        for described, raw in zip(tally.files, rows.files[split], strict=True):
            described["sha256"] = raw.sha256()
    return builder.tallies
