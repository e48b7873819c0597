"""Sources of rows: the files of a corpus in the table, the Hub, the demo corpus, or the user's own pairs.

Of own pairs, files, splits, columns and labels are found, and every decision is reported.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cosent.data.corpus import COLUMNS, SPLITS
from cosent.data.files import (
    LABEL_NAMES,
    PAIR,
    SENTENCE1_NAMES,
    SENTENCE2_NAMES,
    Table,
    TableRecord,
    find_columns,
    first_row,
    open_table,
)
from cosent.data.formats import FORMATS, KEYED, FileOptions, format_of, known_format
from cosent.data.labels import LARGEST, LabelReader, label_values
from cosent.errors import InputError
from cosent.flags import refuse_changed

from .corpora import CORPORA, Corpus, unknown_name
from .pairs import SIDES, Pair, PairRows, QueryRows, RawFile, Tally, query_columns

COLUMN_NAMES = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
HUB_SPLITS = {"train": "train", "validation": "validation", "dev": "validation", "valid": "validation", "test": "test"}
HUB_COLUMNS = ("sentence1", "sentence2", "score")
PUBLISHED = FileOptions(any_quotes=True)  # rows stay as their publishers wrote them
DEMO = Path(__file__).with_name("demo.tsv.gz")  # lines of split, sentence1, sentence2, grade
SCORE_NAMES = ("score", "reranker_score", "similarity", "分数")  # of a model, never the label next to them
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0), "scores": (-LARGEST, LARGEST)}


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


def from_own_pairs(name: str, path: Path, arguments) -> Source:
    """Source of the user's own pairs, a file or a folder, with the flags of `prepare`."""
    try:
        paths, decisions = split_files(path)
    except InputError as error:
        if arguments.label_kind is None:  # a corpus of the table, misspelt?
            raise unknown_name(name) from error
        raise
    files: dict[str, list[RawFile]] = {}
    for split, files_of_split in paths.items():
        files[split] = [find_rows(file, arguments) for file in files_of_split]
        decisions += [f"{file.path.name}: {split}, {file.words}" for file in files[split]]
    all_files = [file for files_of_split in files.values() for file in files_of_split]
    queries = [file for file in all_files if isinstance(file.rows, QueryRows)]
    if arguments.label_kind is None and len(all_files) > len(queries):
        raise unknown_name(name)
    scored = any(file.rows.scored for file in queries)
    kind = arguments.label_kind or ("scores" if scored else "binary")
    if queries and (kind == "nli" or (kind != "binary" and not scored)):
        raise InputError(
            f"--label_kind {kind} is not for rows of a query with pos and neg, unless their pos_scores and neg_scores "
            "are such labels. Leave it out (1 for pos, 0 for neg), or add scores."
        )
    low, high = label_range(kind, arguments)
    source = Source(
        Corpus(name, "graded" if kind == "scores" else kind, low, high),
        files,
        f"own pairs of {path.resolve().name}",
        decisions=decisions,
        shares=shares_of(arguments, files),
        unit="sentence" if arguments.split_by == "sentence" else "query" if queries else "pair",
        on_conflict=arguments.on_conflict,
        label_values=label_values(arguments.label_values),
    )
    for file in queries:
        file.rows.scored = kind != "binary"
    if queries:
        labels = "pos_scores and neg_scores, unchanged" if kind != "binary" else "1 for positives, 0 for negatives"
        ignored = " (pos_scores and neg_scores are not read)" if kind == "binary" and scored else ""
        decisions.append(f"labels: {labels}{ignored}")
    if any(source.shares.values()):
        together = {"pair": "equal pairs", "query": "all pairs of a query", "sentence": "pairs with common sentences"}
        validation, test = source.shares["validation"], source.shares["test"]
        source.words += f"; shares {validation:g} for validation, {test:g} for test, {together[source.unit]} together"
    return source


def split_files(source: Path) -> tuple[dict[str, list[Path]], list[str]]:
    """Files of each split, and decisions about the other files."""
    if source.is_file():
        return {"train": [source]}, []
    paths: dict[str, list[Path]] = {split: [] for split in SPLITS}
    decisions = []
    for path in sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")):
        words = set(re.findall("[a-z]+", path.stem.lower()))
        splits = [split for split, names in SPLIT_WORDS.items() if set(names) & words]
        if len(splits) > 1:
            raise InputError(f"{path} could be {' or '.join(splits)} by its name. Rename it.")
        if splits:
            paths[splits[0]].append(path)
        else:
            decisions.append(f"{path.name}: not read, its name holds no word train, dev, valid or test")
    files = [path for files_of_split in paths.values() for path in files_of_split]
    formats = {format_of(path) for path in files}
    stems = {Path(path.name.removesuffix(".gz")).stem for path in files}
    if len(formats) != 1 or formats == {None} or len(stems) < len(files):
        raise InputError(
            f"Expected in {source} files of one format ({', '.join(FORMATS)}; text also in .gz), each once, with "
            "train, dev (or valid) or test as a word of their names, got "
            f"{', '.join(path.name for path in files) or 'none'}. Rename or move them, or name one file with --source."
        )
    return {split: files_of_split for split, files_of_split in paths.items() if files_of_split}, decisions


def find_rows(path: Path, arguments) -> RawFile:
    """The rows of a file, by the flags of `prepare` and the columns or keys of its first row."""
    first = first_row(path, known_format(path, "--source"), arguments.options)
    columns = None
    if arguments.text_columns or arguments.label_column:
        label_names = arguments.label_column or [None]
        label = next((name for name in label_names if name in first.names), label_names[0])
        columns = [*(arguments.text_columns or (None, None)), label]
    elif arguments.header is not False and (query_and_text := query_columns(first.names)) is not None:
        table = find_columns(first, query_and_text, PAIR, "")
        rows = QueryRows(query_and_text[0], scored=bool(SIDES.keys() & set(first.names)))
        words = "a query with its texts per row"
        if "prompt" in first.names:
            words += "; prompt is not read: train with it as --prompt TEXT ''"
        return RawFile(path, table.records, rows, table.format, words)
    usual_names = (*PAIR, SCORE_NAMES) if arguments.label_kind == "scores" else COLUMN_NAMES
    table = find_columns(first, columns, usual_names, "--text_columns and --label_column")
    words = f"columns {', '.join(table.sentences)}"
    if table.header:
        words = f"line 1 is a header (--no_header if not), {words}"
    elif table.format not in KEYED:
        words = "no header, columns " + ", ".join(f"{table.names.index(name)} as {name}" for name in table.sentences)
    return RawFile(path, table.records, PairRows(table.sentences), table.format, words)


def label_range(kind: str, arguments) -> tuple[float, float]:
    """The range of labels: fixed by the kind, or given by flags; `LARGEST` where the rows decide."""
    low, high = arguments.label_min, arguments.label_max
    if kind in RANGES:
        refuse_changed(arguments, ("label_min", "label_max"), "--label_kind graded")
        return RANGES[kind]
    low = 0.0 if low is None else low
    if high is None or not -LARGEST <= low < high <= LARGEST:
        raise InputError(
            f"--label_kind graded needs a --label_max above --label_min, which is {low:g}, both in the range of "
            f"float32, got {high}; --label_kind scores needs neither."
        )
    return low, high


def shares_of(arguments, files: dict) -> dict[str, float]:
    shares = {"validation": arguments.validation_share, "test": arguments.test_share}
    if not any(shares.values()):
        refuse_changed(arguments, ("split_by",), "--validation_share or --test_share")
    elif set(files) != {"train"} or not (min(shares.values()) >= 0 and sum(shares.values()) < 1):
        raise InputError(
            f"--validation_share {shares['validation']:g} and --test_share {shares['test']:g} of the splits "
            f"{', '.join(files)}: shares of less than 1 in all are taken out of a lone train split. Drop or lower them."
        )
    return shares
