"""Sources of rows: the files of a corpus in the table, the Hub, or the demo corpus; for own pairs see `own`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosent.data.corpus import COLUMNS, SPLITS
from cosent.data.files import LABEL_NAMES, SENTENCE1_NAMES, SENTENCE2_NAMES, Table, TableRecord, open_table
from cosent.data.formats import FileOptions
from cosent.data.labels import LabelReader
from cosent.errors import InputError

from .corpora import CORPORA, Corpus
from .pairs import Pair, PairRows, RawFile, Tally

COLUMN_NAMES = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
HUB_SPLITS = {"train": "train", "validation": "validation", "dev": "validation", "valid": "validation", "test": "test"}
HUB_COLUMNS = ("sentence1", "sentence2", "score")
PUBLISHED = FileOptions(any_quotes=True)  # rows stay as their publishers wrote them
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of split, sentence1, sentence2, grade


@dataclass
class Source:
    """Raw rows of one corpus, and the options of reading them.

    Args:
        files: raw files by split.
        words: origin of the rows, for the manifest.
        warnings, decisions: remarks for the manifest, and for the terminal.
        shares: shares of train for validation and test.
        unit: what stays together in one split: `pair`, `query` or `sentence`.
        on_conflict: `error`, `drop` or `keep` for contradictory pairs; None for published corpora, which stay as they
            are.
        label_values: what labels stand for, as in `LabelReader`.
        on_bad_rows: `error` or `skip`.
    """

    corpus: Corpus
    files: dict[str, list[RawFile]]
    words: str
    warnings: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    unit: str = "pair"
    on_conflict: str | None = None
    label_values: dict[str, str] = field(default_factory=dict)
    on_bad_rows: str = "error"

    def pairs(self, split: str, tally: Tally) -> Iterator[tuple[int, int, Pair]]:
        """Number of the file, line and pair of every usable row of a split, counted in `tally`."""
        labels = LabelReader(self.corpus, self.label_values, tally.words)
        for number, file in enumerate(self.files[split]):
            for line, pair in file.checked_pairs(labels, tally, self.on_bad_rows):
                yield number, line, pair


def from_folder(corpus: Corpus, folder: Path) -> Source:
    """The files of a corpus in the table, in the senteval_cn layout or its publisher's."""
    if not folder.is_dir():
        raise InputError(
            f"--source must be the folder of the raw files of {corpus.name}, got {folder}. For pairs of your own, pass "
            "another name and --label_kind."
        )
    source = Source(corpus, {}, f"folder {folder.resolve().name}", list(corpus.notes))
    for split in SPLITS:
        for part, part_split in corpus.parts.get(split, () if corpus.parts else ((corpus.name, split),)):
            if files := _find(CORPORA[part], part_split, folder, part == corpus.name):
                source.files.setdefault(split, []).extend(files)
            elif corpus.parts:
                source.warnings.append(f"{part} {part_split} is not in the source, so it is not in {split}.")
    if not source.files:
        parts = {part for couples in corpus.parts.values() for part, _ in couples} or {corpus.name}
        folders = sorted({name for part in parts for name in CORPORA[part].folders})
        patterns = sorted(
            {pattern for part in parts for patterns in CORPORA[part].files.values() for pattern in patterns}
        )
        holds = ", ".join(sorted(path.name for path in folder.glob("[!.]*"))[:12]) or "nothing"
        raise InputError(
            f"No file of {corpus.name} in {folder}. Expected one of {', '.join(patterns)}, there or in a folder "
            f"{' or '.join(folders)} below; it holds {holds}. Point --source at the right folder."
        )
    return source


def _find(corpus: Corpus, split: str, source: Path, alone: bool) -> list[RawFile]:
    """The files of a split in the folders named after a corpus; of one corpus `alone` also directly in `source`.

    Names such as train.txt identify no corpus: a folder named after another one is not searched.
    """
    folders = [source / name for name in corpus.folders]
    if alone and not any(source.name in other.folders for other in CORPORA.values() if other != corpus):
        folders = [source, *folders]
    matches = (sorted(folder.glob(pattern)) for folder in folders for pattern in corpus.files[split])
    return list(map(_published, next(filter(None, matches), [])))


def _published(path: Path) -> RawFile:
    if path.suffix in (".data", ".txt"):
        return RawFile(path, Table(path, "tsv", COLUMNS, options=PUBLISHED).records)
    table = open_table(path, None, COLUMN_NAMES, "", "--source", PUBLISHED)
    return RawFile(path, table.records, PairRows(table.sentences), table.format)


def from_hub(corpus: Corpus) -> Source:
    """The pinned Hub revision of a corpus."""
    if not corpus.hub_repository:
        names = ", ".join(name for name, other in CORPORA.items() if other.hub_repository)
        raise InputError(f"{corpus.name} has no pinned repository on the Hub ({names} have). Use --source FOLDER.")
    import datasets

    repository, revision = corpus.hub_repository, corpus.hub_revision
    try:
        loaded = datasets.load_dataset(repository, revision=revision)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise InputError(
            f"--source hub: {repository} at revision {revision} could not be reached ({error}). Use --source FOLDER, "
            "or set HF_ENDPOINT to a mirror."
        ) from error
    files = {}
    for name, rows in loaded.items():
        if name not in HUB_SPLITS or not set(HUB_COLUMNS) <= set(rows.column_names):
            raise InputError(
                f"{repository}@{revision}: expected splits among {', '.join(HUB_SPLITS)} with the columns "
                f"{', '.join(HUB_COLUMNS)}, got split {name!r} with {rows.column_names}. Use --source FOLDER."
            )
        files[HUB_SPLITS[name]] = [RawFile(Path(repository, name), partial(_hub_records, rows))]
    files = {split: files[split] for split in SPLITS if split in files}
    return Source(corpus, files, f"Hugging Face Hub {repository} at revision {revision}", list(corpus.notes))


def _hub_records(rows) -> Iterator[TableRecord]:
    for number, row in enumerate(rows, start=1):
        fields = [row[column] for column in HUB_COLUMNS]
        yield number, json.dumps(fields, ensure_ascii=False), dict(zip(COLUMNS, fields, strict=True))


def from_demo(corpus: Corpus) -> Source:
    """The demo corpus, whose pairs come with this project."""
    return Source(corpus, {split: [RawFile(DEMO, partial(_demo_records, split))] for split in SPLITS}, DEMO.name)


def _demo_records(split: str) -> Iterator[TableRecord]:
    records = Table(DEMO, "tsv", ("split", *COLUMNS), options=PUBLISHED).records()
    return (record for record in records if record[2]["split"] == split)
