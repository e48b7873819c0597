"""Find the files, splits, columns and labels of the user's own pairs, and report every decision."""

import re
from pathlib import Path

from cosent.data.corpus import SPLITS
from cosent.data.files import PAIR, find_columns, first_row
from cosent.data.formats import FORMATS, KEYED, format_of, known_format
from cosent.data.labels import LARGEST, label_values
from cosent.errors import InputError
from cosent.flags import refuse_changed

from .corpora import Corpus, unknown_name
from .pairs import SIDES, PairRows, QueryRows, RawFile, query_columns
from .sources import COLUMN_NAMES, Source

SCORE_NAMES = ("score", "reranker_score", "similarity", "分数")  # of a model, never the label next to them
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0), "scores": (-LARGEST, LARGEST)}


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
