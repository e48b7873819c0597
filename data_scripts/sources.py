"""Sources of rows: the files of a corpus in the table, the user's own files, the Hub, or the demo corpus."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosent.data.files import Table, TableRecord, open_table
from cosent.data.manifest import COLUMNS, SPLITS
from cosent.errors import InputError
from data_scripts.corpora import CORPORA, Corpus
from data_scripts.pairs import COLUMN_FLAGS, COLUMN_NAMES, LabelRange, Pair, PairRows, RawFile, Tally
from data_scripts.splits import Carve, Repetitions, contradiction_error, find_repetitions

HUB_SPLITS = {"train": "train", "validation": "validation", "dev": "validation", "valid": "validation", "test": "test"}
HUB_COLUMNS = ("sentence1", "sentence2", "score")
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of split, sentence1, sentence2, grade
SIMILAR_GRADE = 3  # the lowest grade that demo_binary labels 1


@dataclass
class Source:
    """The raw rows of one corpus, and what is done with them.

    Args:
        files: raw files by split.
        words: origin of the rows, for the manifest.
        warnings, decisions: remarks for the manifest, and for the terminal.
        carve: shares to take out of the train split.
        on_conflict: `error`, `drop` or `keep` for contradictory pairs; None for published corpora, which stay as they
            are.
        prompt: prompt of every first sentence, which is not part of it.
        label_values: what labels stand for, as in `LabelRange`.
        on_bad_rows: `error` or `skip`.
    """

    corpus: Corpus
    files: dict[str, list[RawFile]]
    words: str
    warnings: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    carve: Carve | None = None
    on_conflict: str | None = None
    prompt: str = ""
    label_values: dict[str, str] | None = None
    on_bad_rows: str = "error"

    def lines(self, split: str, tally: Tally | None = None) -> Iterator[tuple[RawFile, int, Pair]]:
        """File, line and pair of every usable row of a split, counted in `tally`."""
        tally = Tally() if tally is None else tally
        kind, low, high = self.corpus.label_kind, self.corpus.label_min, self.corpus.label_max
        labels = LabelRange(kind, low, high, self.label_values, tally.words)
        for file in self.files[split]:
            for line, pair in file.pairs(labels, tally, self.on_bad_rows):
                yield file, line, pair

    def repetitions(self, split: str) -> Repetitions:
        """Repeated and contradictory pairs of a split; nothing is found where nothing is looked for."""
        if self.on_conflict is None:
            return Repetitions()
        found = find_repetitions((pair for _, _, pair in self.lines(split)), self.corpus.label_kind == "nli")
        if found.contradictory and self.on_conflict == "error":
            places = ((file.place(line), pair) for file, line, pair in self.lines(split))
            raise contradiction_error(split, found, places)
        return found

    def kept(self, split: str, repeated: Repetitions, tally: Tally | None = None) -> Iterator[tuple[str, Pair]]:
        """The pairs of a split that are kept, each with its group."""
        tally = Tally() if tally is None else tally
        for file, _, pair in self.lines(split, tally):
            if self.on_conflict == "drop" and repeated.contradicts(pair):
                tally.left_out["contradictory pair"] += 1
            else:
                yield file.rows.group(pair), pair


def from_folder(corpus: Corpus, folder: Path) -> Source:
    """The files of a corpus in the table, in the senteval_cn layout or its publisher's."""
    if not folder.is_dir():
        raise InputError(
            f"--source must be the folder of the raw files of {corpus.name}, got {folder}. For pairs of your own, pass "
            "another name and --label_kind."
        )
    source = Source(corpus, {}, f"folder {folder.resolve().name}", list(corpus.notes))
    part_of: dict[Path, str] = {}
    for split in SPLITS:
        for part, part_split in corpus.parts.get(split, () if corpus.parts else ((corpus.name, split),)):
            files = _find(CORPORA[part], part_split, folder)
            for path in (file.path for file in files):
                if part_of.setdefault(path, part) != part:
                    raise InputError(
                        f"{path} could be of {part_of[path]} and of {part}. Put the files of each into a folder of its "
                        f"name below {folder}."
                    )
            if files:
                source.files.setdefault(split, []).extend(files)
            elif corpus.parts:
                source.warnings.append(f"{part} {part_split} is not in the source, so it is not in {split}.")
    if not source.files:
        parts = [CORPORA[part] for couples in corpus.parts.values() for part, _ in couples] or [corpus]
        folders = sorted({name for part in parts for name in part.folders})
        patterns = sorted({pattern for part in parts for patterns in part.files.values() for pattern in patterns})
        holds = ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
        raise InputError(
            f"No file of {corpus.name} in {folder}. Expected one of {', '.join(patterns)}, there or in a folder "
            f"{' or '.join(folders)} below; it holds {holds}. Point --source at the right folder."
        )
    return source


def _find(corpus: Corpus, split: str, source: Path) -> list[RawFile]:
    for folder in (source, *(source / name for name in corpus.folders)):
        # Names such as train.txt do not identify the corpus: a folder named after another corpus is not searched.
        if any(folder.name in other.folders and corpus.name != name for name, other in CORPORA.items()):
            continue
        for pattern in corpus.files[split]:
            if paths := sorted(folder.glob(pattern)):
                return list(map(_published, paths))
    return []


def _published(path: Path) -> RawFile:
    if path.suffix in (".data", ".txt"):
        return RawFile(path, Table(path, "tsv", COLUMNS).records)
    table = open_table(path, None, COLUMN_NAMES, COLUMN_FLAGS, "--source")
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
    binary = corpus.label_kind == "binary"
    files = {split: [RawFile(DEMO.with_name(split), partial(_demo_records, split, binary))] for split in SPLITS}
    return Source(corpus, files, DEMO.name)


def _demo_records(split: str, binary: bool) -> Iterator[TableRecord]:
    for number, text, row in Table(DEMO, "tsv", ("split", *COLUMNS)).records():
        if row["split"] == split:
            label = float(int(row["label"]) >= SIMILAR_GRADE) if binary else row["label"]
            yield number, text, row | {"label": label}
