"""Find the files, splits, columns, labels and prompts of the user's own pairs, and report every decision."""

import re
import shlex
from collections import Counter
from pathlib import Path

from cosent.data import records
from cosent.data.files import SCORE_NAMES, Table, find_columns, first_fields, label_values
from cosent.data.manifest import SPLITS
from cosent.data.records import KEYED, RowError, ending_of, format_of
from cosent.errors import InputError
from data_scripts.corpora import Corpus, unknown_name
from data_scripts.pairs import (
    COLUMN_FLAGS,
    COLUMN_NAMES,
    LARGEST,
    PROMPT,
    SIDES,
    PairRows,
    QueryRows,
    RawFile,
    prompt_of,
    query_column,
)
from data_scripts.sources import Source
from data_scripts.splits import Carve

FORMATS = records.FORMATS | {".txt": "tsv", ".data": "tsv"}  # a line of a corpus has tabs
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
FIXED_RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0), "scores": (-LARGEST, LARGEST)}
MOST_PROMPTS = 100  # different ones that are told apart


def from_own_pairs(name: str, path: Path, arguments) -> Source:
    """Source of the user's own pairs, a file or a folder, with the flags of `prepare`."""
    try:
        paths, decisions = split_files(path, arguments.format, arguments.leave_out or [])
    except InputError as error:
        if arguments.label_kind is None:  # a corpus of the table, misspelt?
            raise unknown_name(name) from error
        raise
    files: dict[str, list[RawFile]] = {}
    for split, some in paths.items():
        for file in some:
            raw, words = find_rows(file, arguments)
            files.setdefault(split, []).append(raw)
            decisions.append(f"{file.name}: {split}, {raw.format}, {words}")
        if len(some) > 1:
            decisions.append(f"{split}: {len(some)} files, joined ({', '.join(file.name for file in some)})")
    all_files = [file for some in files.values() for file in some]
    queries = [file for file in all_files if isinstance(file.rows, QueryRows)]
    if arguments.label_kind is None and len(all_files) > len(queries):
        raise unknown_name(name)
    scored, prompts, unread = query_fields(queries)
    kind = arguments.label_kind or ("scores" if scored else "binary")
    if queries and (kind == "nli" or (kind != "binary" and not scored)):
        raise InputError(
            f"--label_kind {kind} is not for rows of a query with pos and neg, unless their pos_scores and neg_scores "
            "are such labels. Leave it out (1 for pos, 0 for neg), or add scores."
        )
    low, high = label_range(kind, arguments)
    source = Source(
        Corpus(name, "graded" if kind == "scores" else kind, label_min=low, label_max=high),
        files,
        f"own pairs of {path.resolve().name}",
        decisions=decisions,
        carve=carve_of(arguments, files),
        on_conflict=arguments.on_conflict or "error",
        label_values=label_values(arguments.label_values),
    )
    for file in queries:
        file.rows.scored, file.rows.add_prompt = kind != "binary", len(prompts) > 1
    if queries:
        labels = "pos_scores and neg_scores, unchanged" if kind != "binary" else "1 for positives, 0 for negatives"
        ignored = " (pos_scores and neg_scores are not read)" if kind == "binary" and scored else ""
        decisions.append(f"labels: {labels}{ignored}")
        report_prompts(source, prompts)
    if unread:
        decisions.append(f"not read: {', '.join(sorted(unread))}")
    if source.carve:
        unit, together = ("queries", "All pairs of a query") if queries else ("pairs", "Equal pairs")
        if source.carve.by_sentence:
            together = "Pairs that share a sentence, also through others,"
        source.warnings.append(
            f"No published split: of the different {unit}, a share of {source.carve.validation_share:g} was taken out "
            f"for validation and {source.carve.test_share:g} for test, with seed {source.carve.seed}. {together} stay "
            "together."
        )
    return source


def split_files(source: Path, format: str | None, left_out: list[str]) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each split, and what is decided about the others."""
    if source.is_file():
        if left_out:
            raise InputError(f"--leave_out {' '.join(left_out)}: {source} is one file. Drop the flag.")
        return {"train": [source]}, []
    if not source.is_dir():
        raise InputError(f"--source must be a file or a folder with pairs, got {source}, which does not exist.")
    paths: dict[str, list[Path]] = {split: [] for split in SPLITS}
    decisions, present = [], set()
    for path in sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")):
        words = set(re.findall("[a-z]+", path.stem.lower()))
        splits = [split for split, names in SPLIT_WORDS.items() if set(names) & words]
        present |= set(splits)
        if len(splits) > 1:
            raise InputError(f"{path} could be {' or '.join(splits)} by its name. Rename it.")
        if not splits:
            decisions.append(f"{path.name}: not read, its name holds no word train, dev, valid or test")
        elif splits[0] in left_out:
            decisions.append(f"{path.name}: not read, --leave_out {splits[0]}")
        else:
            paths[splits[0]].append(path)
    if not set(left_out) <= present:
        raise InputError(f"--leave_out {' '.join(left_out)}: {source} has no files of such a split. Correct the flag.")
    files = [path for some in paths.values() for path in some]
    formats = {ending_of(path) if format_of(path, FORMATS) else None for path in files}
    if not files or (not format and (None in formats or len(formats) > 1)):
        raise InputError(
            f"Expected in {source} files of one format ({', '.join(FORMATS)}) with train, dev (or valid) or test as a "
            f"word of their names, got {', '.join(path.name for path in files) or 'none'}. Rename or move them, or "
            "name one file with --source."
        )
    return {split: some for split, some in paths.items() if some}, decisions


def find_rows(path: Path, arguments) -> tuple[RawFile, str]:
    """The rows of a file, by the flags of `prepare` and the columns or keys of its first row; and in words."""
    format = arguments.format or format_of(path, FORMATS)
    if format is None:
        raise InputError(f"The format of {path} is not clear from its name. Pass --format.")
    options, keyed = arguments.options, format in KEYED
    flags = (arguments.sentence1_column, arguments.sentence2_column, arguments.label_column)
    names = tuple(str(field).strip() for field in first_fields(path, format, options))
    if not any(flags) and arguments.header is not False and query_column(names) is not None:
        check_queries(path, names)
        table = Table(path, format, names, header=not keyed, options=options)
        rows = QueryRows(str(query_column(names)))
        return RawFile(path, table.records, rows, format), "a query with positives and negatives per row"
    if keyed and arguments.header is not None:
        raise InputError(f"{path} is {format}, whose rows have keys: leave --header out.")
    known = (*COLUMN_NAMES[:2], SCORE_NAMES) if arguments.label_kind == "scores" else COLUMN_NAMES
    try:
        table = find_columns(path, format, flags, known, COLUMN_FLAGS, options, arguments.header)
    except InputError as error:
        more = "Or pass --header, --no_header or --format, or leave a split without labels out with --leave_out."
        raise InputError(f"{error} {more}") from error
    words = f"columns {', '.join(table.sentences)}"
    if not keyed and table.header:
        words = f"line 1 is a header (--no_header if not), {words}"
    elif not keyed:
        positions = (str(table.names.index(name)) for name in table.sentences)
        words = f"no header (--header if line 1 is one), columns {', '.join(positions)}"
    return RawFile(path, table.records, PairRows(table.sentences), format), words


def check_queries(path: Path, names: tuple[str, ...]) -> None:
    """Refuses columns of queries that could mean something else."""
    if set(COLUMN_NAMES[2]) & set(names) and not any(map(SIDES["neg_scores"][0].fullmatch, names)):
        raise InputError(
            f"{path}, line 1: {', '.join(names)} could be pairs with a label, or texts that all belong to their query. "
            f"For pairs, pass {COLUMN_FLAGS}; for the other, remove the label."
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}, line 1: expected different columns, got {names}. Rename one of two.")


def query_fields(files: list[RawFile]) -> tuple[int, Counter, set[str]]:
    """Of rows of queries: how many have scores, how many have which prompt, and the columns that no pair is made of.

    Bad rows are left out here, and reported when they are read.
    """
    scored, prompts, unread = 0, Counter(), set()
    for file in files:
        for _, _, row in file.records():
            try:
                prompt = prompt_of(row) if isinstance(row, dict) else None
            except RowError:
                continue
            if prompt is not None:
                scored += any(row.get(side) is not None for side in SIDES)
                prompts["..." if prompt not in prompts and len(prompts) >= MOST_PROMPTS else prompt] += 1
                unread |= set(row) - {file.rows.query, PROMPT, *SIDES}
    texts = [columns for columns, _ in SIDES.values()]
    return scored, prompts, {name for name in unread if not any(one.fullmatch(name) for one in texts)}


def report_prompts(source: Source, prompts: Counter) -> None:
    """Records the prompts of queries: the only one as a flag to train with, different ones as part of the queries."""
    if len(prompts) > 1:
        shown = "; ".join(f"{prompt or 'none'!r}: {rows:,} rows" for prompt, rows in prompts.most_common(3))
        source.warnings.append(
            f"The rows have different prompts ({shown}): each is written before its query, in sentence1. Write them "
            "before the queries of the trained model too; --prompt would add one more."
        )
        return
    source.prompt = next(iter(prompts), "")
    if source.prompt:
        quoted = shlex.quote(source.prompt)
        source.decisions.append(
            f"prompt: the same in every row, and not written into the queries; train with --prompt {quoted} '' (none "
            f"for the texts), a cross-encoder with --prompt {quoted}"
        )


def label_range(kind: str, arguments) -> tuple[float, float]:
    low, high = arguments.label_min, arguments.label_max
    if kind in FIXED_RANGES:
        if (low, high) != (None, None):
            own = "that of its rows" if kind == "scores" else "a fixed range"
            raise InputError(f"--label_min and --label_max are for --label_kind graded; {kind} has {own}.")
        return FIXED_RANGES[kind]
    if None in (low, high) or not low < high:
        raise InputError(
            f"--label_kind graded needs --label_min and --label_max, e.g. 0 and 5, got {low} and {high}; --label_kind "
            "scores needs neither."
        )
    return low, high


def carve_of(arguments, files: dict) -> Carve | None:
    validation, test = arguments.validation_share or 0.0, arguments.test_share or 0.0
    if not validation and not test:
        if arguments.split_by is not None:
            raise InputError("--split_by is about drawing splits: add --validation_share or --test_share.")
        return None
    if set(files) != {"train"} or not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise InputError(
            "--validation_share and --test_share take pairs out of a lone train split and leave some there, got the "
            f"splits {', '.join(files)} and the shares {validation:g} and {test:g}. Drop them, or make their sum less "
            "than 1."
        )
    return Carve(validation, test, arguments.seed, arguments.split_by == "sentence")
