"""Sources of rows: the files of a corpus in the table, the user's own files, the Hub, or the demo grammar."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosent.data.files import Record
from cosent.data.manifest import SPLITS
from cosent.errors import InputError
from data_scripts.builder import RawFile, Rows
from data_scripts.checks import LabelRange
from data_scripts.corpora import CORPORA, TEXT, Corpus
from data_scripts.survey import Carve

HUB_SPLITS = {"train": "train", "validation": "validation", "dev": "validation", "valid": "validation", "test": "test"}
HUB_COLUMNS = ("sentence1", "sentence2", "score")


@dataclass
class Source:
    """A source as `prepare` needs it before reading a row.

    Args:
        on_conflict: what to do with contradictory pairs; None for published corpora, which stay as they are.
        prompt: prompt of every first sentence, which is not part of it.
        label_values: what labels stand for, as in `LabelRange`.
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

    def rows(self, on_bad_rows: str) -> Rows:
        labels = LabelRange(self.corpus.label_kind, self.corpus.label_min, self.corpus.label_max, self.label_values)
        return Rows(self.files, labels, on_bad_rows, self.on_conflict, self.carve)


def from_folder(corpus: Corpus, source: Path) -> Source:
    """The files of a corpus in the table, in the senteval_cn layout or its publisher's.

    Raises:
        InputError: `source` is not a folder, holds no file of this corpus, or one that two of its parts would read.
    """
    if not source.is_dir():
        raise InputError(
            f"--source must be the folder that holds the raw files of {corpus.name}, got {source}, which is not a "
            "folder. For a file of your own pairs, choose another name and pass --label_kind."
        )
    warnings, decisions, files = list(corpus.notes), [], {}
    part_of: dict[Path, str] = {}
    for split in SPLITS:
        for part, part_split in corpus.parts.get(split, () if corpus.parts else ((corpus.name, split),)):
            found = _find(CORPORA[part], part_split, source)
            for path in (file.path for file in found):
                if part_of.setdefault(path, part) != part:
                    raise InputError(
                        f"{path} could be of {part_of[path]} and of {part}: its name says neither, and its rows would "
                        f"be in {corpus.name} twice. Put the files of each into a folder of its name below {source}."
                    )
            files.setdefault(split, []).extend(found)
            if not found and corpus.parts:
                warnings.append(f"{part} {part_split} is not in the source, so it is not in {split}.")
    files = {split: found for split, found in files.items() if found}
    if not files:
        raise _nothing_found(corpus, source)
    return Source(corpus, files, f"folder {source.resolve().name}", warnings, decisions)


def _find(corpus: Corpus, split: str, source: Path) -> list[RawFile]:
    for folder in (source, *(source / name for name in corpus.folders)):
        # Names such as train.txt do not identify the corpus: a folder named after another corpus is not searched.
        if any(folder.name in other.folders and corpus.name != name for name, other in CORPORA.items()):
            continue
        for pattern, layout in corpus.files[split]:
            if paths := sorted(folder.glob(pattern)):
                return [RawFile(path, layout) for path in paths]
    return []


def _nothing_found(corpus: Corpus, source: Path) -> InputError:
    parts = [CORPORA[part] for couples in corpus.parts.values() for part, _ in couples] or [corpus]
    folders = sorted({folder for part in parts for folder in part.folders})
    patterns = sorted({pattern for part in parts for files in part.files.values() for pattern, _ in files})
    holds = ", ".join(sorted(path.name for path in source.iterdir())[:12]) or "nothing"
    return InputError(
        f"No file of {corpus.name} in {source}. Expected one of {', '.join(patterns)}, there or in a folder "
        f"{' or '.join(folders)} below; it holds {holds}. An empty corpus would be of no use: point --source at the "
        "right folder, or choose a name of your own and pass --label_kind."
    )


def from_hub(corpus: Corpus) -> Source:
    """The pinned Hub revision of a corpus.

    Raises:
        InputError: the corpus has none, the Hub cannot be reached, or its columns are unexpected.
    """
    if not corpus.hub_repository:
        names = ", ".join(name for name, other in CORPORA.items() if other.hub_repository)
        raise InputError(f"{corpus.name} has no pinned repository on the Hub ({names} have). Use --source FOLDER.")
    import datasets

    repository, revision = corpus.hub_repository, corpus.hub_revision
    try:
        loaded = datasets.load_dataset(repository, revision=revision)
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise InputError(
            f"--source hub needs {repository} at revision {revision}, and the Hugging Face Hub could not be reached "
            f"({error}). Without network, use --source FOLDER with the raw files; behind a mirror, set HF_ENDPOINT."
        ) from error
    files, warnings = {}, list(corpus.notes)
    for name, rows in loaded.items():
        if name not in HUB_SPLITS or not set(HUB_COLUMNS) <= set(rows.column_names):
            raise InputError(
                f"{repository}@{revision}: expected splits among {', '.join(HUB_SPLITS)} with the columns "
                f"{', '.join(HUB_COLUMNS)}, got split {name!r} with {', '.join(rows.column_names)}. Other columns "
                "could be read as the wrong text. Please report this; until then use --source FOLDER."
            )
        files[HUB_SPLITS[name]] = [RawFile(Path(repository, name), TEXT, partial(_hub_records, rows))]
    files = {split: files[split] for split in SPLITS if split in files}
    return Source(corpus, files, f"Hugging Face Hub {repository} at revision {revision}", warnings)


def _hub_records(rows) -> Iterator[Record]:
    for number, row in enumerate(rows, start=1):
        fields = [row[column] for column in HUB_COLUMNS]
        yield number, json.dumps(fields, ensure_ascii=False), fields


def from_demo(corpus: Corpus) -> Source:
    from data_scripts import demo

    binary = corpus.label_kind == "binary"
    files = {
        split: [RawFile(Path("data_scripts.demo", split), TEXT, partial(_demo_records, demo.pairs, split, binary))]
        for split in SPLITS
    }
    return Source(corpus, files, f"data_scripts.demo, seed {demo.SEED}", list(corpus.notes))


def _demo_records(pairs: Callable, split: str, binary: bool) -> Iterator[Record]:
    for number, fields in enumerate(pairs(split, binary), start=1):
        yield number, "\t".join(map(str, fields)), list(fields)
