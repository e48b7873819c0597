"""Find the files, splits, columns, labels and prompts of the user's own pairs, and report every decision."""

import re
import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from cosent.data import records
from cosent.data.files import SCORE_NAMES, label_values, separator_hint
from cosent.data.manifest import SPLITS
from cosent.data.records import KEYED, FileOptions, RowError, ending_of, format_of, place, read_records
from cosent.errors import InputError
from data_scripts.corpora import Corpus, unknown_name
from data_scripts.pairs import (
    ANY_SCORE,
    COLUMN_FLAGS,
    COLUMN_NAMES,
    PROMPT,
    SIDES,
    Layout,
    QueryLayout,
    by_name,
    prompt_of,
    query_column,
)
from data_scripts.sources import RawFile, Source
from data_scripts.splits import Carve

FORMATS = records.FORMATS | {".txt": "tsv", ".data": "tsv"}  # a line of a corpus has tabs
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
FIXED_RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0), "scores": (ANY_SCORE.low, ANY_SCORE.high)}
MOST_PROMPTS = 100  # different ones that are told apart


def from_own_pairs(name: str, path: Path, arguments) -> Source:
    """Source of the user's own pairs, a file or a folder, with the flags of `prepare`."""
    try:
        paths, decisions = split_files(path, arguments.format, arguments.leave_out or [])
    except InputError as error:
        if arguments.label_kind is None:  # a corpus of the table, misspelt?
            raise unknown_name(name) from error
        raise
    options = FileOptions(arguments.sheet, arguments.encoding or "utf-8")
    files: dict[str, list[RawFile]] = {}
    for split in (split for split in SPLITS if split in paths):
        for file in paths[split]:
            layout, words = find_layout(file, arguments, options)
            files.setdefault(split, []).append(RawFile(file, layout, options=options))
            decisions.append(f"{file.name}: {split}, {layout.format}, {words}")
        if len(paths[split]) > 1:
            joined = ", ".join(file.name for file in paths[split])
            decisions.append(f"{split}: {len(paths[split])} files, joined ({joined})")
    queries = [file for some in files.values() for file in some if isinstance(file.layout, QueryLayout)]
    fields = QueryFields.of(queries)
    if arguments.label_kind is None and sum(map(len, files.values())) > len(queries):
        raise unknown_name(name)
    kind = arguments.label_kind or ("scores" if fields.scored else "binary")
    if queries and (kind == "nli" or (kind != "binary" and not fields.scored)):
        raise InputError(
            f"--label_kind {kind} needs labels of that kind, and rows of a query with pos and neg have none but "
            "pos_scores and neg_scores. Leave --label_kind out (1 for pos, 0 for neg), or add scores."
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
    if queries:
        known = {"scored": kind != "binary", "add_prompt": len(fields.prompts) > 1}
        for some in files.values():
            some[:] = [
                replace(file, layout=replace(file.layout, **known)) if isinstance(file.layout, QueryLayout) else file
                for file in some
            ]
        fields.report(source, kind)
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
    paths: dict[str, list[Path]] = {}
    decisions, present = [], set()
    for path in sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")):
        words = set(re.findall("[a-z]+", path.stem.lower()))
        splits = [split for split, names in SPLIT_WORDS.items() if set(names) & words]
        if not format and not format_of(path, FORMATS):
            if splits:
                raise InputError(
                    f"{path} is {splits[0]} by its name, and its ending none of {', '.join(FORMATS)}. Unpack or rename "
                    "it, name the format with --format, or move it away."
                )
            decisions.append(f"{path.name}: not read, its ending is none of {', '.join(FORMATS)}")
        elif len(splits) > 1:
            raise InputError(f"{path} could be {' or '.join(splits)} by its name. Rename it.")
        elif not splits:
            decisions.append(f"{path.name}: not read, its name holds no word train, dev, valid or test")
        elif splits[0] in left_out:
            decisions.append(f"{path.name}: not read, --leave_out {splits[0]}")
        else:
            paths.setdefault(splits[0], []).append(path)
        present |= set(splits)
    if not set(left_out) <= present:
        raise InputError(f"--leave_out {' '.join(left_out)}: {source} has no files of such a split. Correct the flag.")
    endings = sorted({ending_of(path) for some in paths.values() for path in some})
    if not paths or (len(endings) > 1 and not format):
        raise InputError(
            f"Expected in {source} files of one format ({', '.join(FORMATS)}) with train, dev (or valid) or test as a "
            f"word of their names, got {', '.join(path.name for some in paths.values() for path in some) or 'none'}. "
            "Name one file with --source, or rename the files."
        )
    return paths, decisions


def find_layout(path: Path, arguments, options: FileOptions) -> tuple[Layout | QueryLayout, str]:
    """The layout of a file, by the flags of `prepare` and the columns or keys of its first row; and in words."""
    format = arguments.format or format_of(path, FORMATS)
    if format is None:
        raise InputError(f"The format of {path} is not clear from its name. Pass --format.")
    first = first_row(path, format, options)
    names = list(first)
    flags = (arguments.sentence1_column, arguments.sentence2_column, arguments.label_column)
    wanted = [flag and (int(flag[0]) if flag[0].isdecimal() and len(flag) == 1 else (*flag,)) for flag in flags]
    known = (*COLUMN_NAMES[:2], SCORE_NAMES) if arguments.label_kind == "scores" else COLUMN_NAMES
    if not any(flags) and arguments.header is not False and query_column(names) is not None:
        return query_layout(path, format, first)
    if format in KEYED:
        if any(isinstance(column, int) for column in wanted) or arguments.header is not None:
            raise InputError(f"{path} is {format}: name its columns by their keys, and leave --header out.")
        layout = Layout(format, columns=tuple(w or k for w, k in zip(wanted, known, strict=True)), width=None)
        return layout, f"columns {', '.join(map(str, layout.find_columns(names, path)))}" if names else "no rows"
    header, reason = has_header(names, wanted, arguments.header)
    named = [" ".join(column) for column in wanted if isinstance(column, tuple)]
    if named and not header:
        raise InputError(f"{path}: --no_header, so columns have positions from 0 and no names, got {', '.join(named)}.")
    by_names = [header and bool(set(some) & set(names)) for some in known]
    if len(names) != 3 and any(column is None and not found for column, found in zip(wanted, by_names, strict=True)):
        raise InputError(
            f"{path}, line 1: expected 3 columns (sentence1, sentence2, label) or a header with such names, got "
            f"{len(names)}: {names}. Pass {COLUMN_FLAGS} (names of the header, or positions from 0), or --format; "
            f"leave a split without labels out with --leave_out.{separator_hint(names)}"
        )
    columns = tuple(
        wanted[i] if wanted[i] is not None else known[i] if by_names[i] else i for i in range(len(COLUMN_NAMES))
    )
    layout = Layout(format, header, columns, width=None)
    positions = layout.find_columns(names, path)
    return layout, f"{reason}, columns {', '.join(names[i] if header else str(i) for i in positions)}"


def first_row(path: Path, format: str, options: FileOptions) -> dict | list[str]:
    """The first row with fields; where rows name their columns, the first one that can be read."""
    for number, _, fields in read_records(path, format, options=options):
        if isinstance(fields, RowError) and format not in KEYED:
            raise InputError(f"{place(path, format, number)}: {fields}. The columns are read from it: correct it.")
        if fields and not isinstance(fields, RowError):
            return fields if isinstance(fields, dict) else [str(field).strip() for field in fields]
    if format in KEYED:
        return {}
    raise InputError(f"{path} is empty: it has no rows. Name another file.")


def has_header(names: list[str], wanted: list, flag: bool | None) -> tuple[bool, str]:
    """Whether line 1 is a header, and why: only if it holds known (or requested) column names."""
    if flag is not None:
        return flag, "line 1 is a header (--header)" if flag else "no header (--no_header)"
    if any(isinstance(column, tuple) for column in wanted):
        return True, "line 1 is a header (columns are asked for by name)"
    if all(set(known) & set(names) for known in COLUMN_NAMES[:2]):
        return True, "line 1 is a header (it holds column names; --no_header if not)"
    return False, "no header (line 1 holds no known column name; --header if it is one)"


def query_layout(path: Path, format: str, first: dict | list[str]) -> tuple[QueryLayout, str]:
    names = list(first)
    positive, negative = (columns for columns, _ in SIDES.values())
    if set(COLUMN_NAMES[2]) & set(names) and not any(map(negative.fullmatch, names)):
        raise InputError(
            f"{path}, line 1: {', '.join(names)} could be pairs with a label, or texts that all belong to their query. "
            f"For pairs, pass {COLUMN_FLAGS}; for the other, remove the label."
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}, line 1: expected different columns, got {names}. Rename one of two.")
    lists = isinstance(first, dict) and any(isinstance(first[n], list) for n in names if positive.fullmatch(n))
    words = "lists of texts" if lists else "one text per column"
    layout = QueryLayout(format, isinstance(first, list), str(query_column(names)), lists)
    return layout, f"a query with positives and negatives per row, {words}"


@dataclass
class QueryFields:
    """What rows hold besides a query and its texts.

    Args:
        scored: rows with `pos_scores` or `neg_scores`.
        prompts: rows by prompt; those without one have an empty one.
        unread: columns that no pair is made of.
    """

    scored: int = 0
    prompts: Counter = field(default_factory=Counter)
    unread: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, files: list[RawFile]) -> "QueryFields":
        """Counts the rows of files; bad rows are left out here, and reported when they are read."""
        fields = cls()
        for file in files:
            names: list[str] = []
            for _, _, values in file.read():
                if isinstance(values, RowError) or not values:
                    continue
                if file.layout.header and not names:
                    names = [str(value).strip() for value in values]
                    continue
                try:
                    row = by_name(values, names)
                    prompt = prompt_of(row)
                except RowError:
                    continue
                fields.scored += any(row.get(side) is not None for side in SIDES)
                many = prompt not in fields.prompts and len(fields.prompts) >= MOST_PROMPTS
                fields.prompts["..." if many else prompt] += 1
                fields.unread |= set(row) - {file.layout.query, PROMPT, *SIDES}  # type: ignore[union-attr]
        texts = [columns for columns, _ in SIDES.values()]
        fields.unread = {name for name in fields.unread if not any(one.fullmatch(name) for one in texts)}
        return fields

    def report(self, source: Source, kind: str) -> None:
        """Adds to a source what was found and decided."""
        labels = "1 for positives, 0 for negatives"
        if kind != "binary":
            labels = "pos_scores and neg_scores, unchanged"
        elif self.scored:
            labels += " (--label_kind binary: pos_scores and neg_scores are not read)"
        source.decisions.append(f"labels: {labels}")
        if self.unread:
            source.decisions.append(f"not read: {', '.join(sorted(self.unread))}")
        if len(self.prompts) > 1:
            shown = "; ".join(f"{prompt or 'none'!r}: {rows:,} rows" for prompt, rows in self.prompts.most_common(3))
            source.warnings.append(
                f"The rows have different prompts ({shown}): each is written before its query, in sentence1. Write "
                "them before the queries of the trained model too; --prompt would add one more."
            )
            return
        source.prompt = next(iter(self.prompts), "")
        if source.prompt:
            quoted = shlex.quote(source.prompt)
            source.decisions.append(
                f"prompt: the same in every row, and not written into the queries; train with --prompt {quoted} '' "
                f"(none for the texts), a cross-encoder with --prompt {quoted}"
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
            f"--label_kind graded needs --label_min and --label_max, e.g. 0 and 5, got {low} and {high}; for the "
            "scores of a model, --label_kind scores takes their range from the rows."
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
            "--validation_share and --test_share take pairs out of a single train split and leave some there, got the "
            f"splits {', '.join(files)} and the shares {validation:g} and {test:g}. Drop them where there are splits "
            "already, or make their sum less than 1."
        )
    return Carve(validation, test, arguments.seed, arguments.split_by == "sentence")
