"""Find the files, splits, labels and prompts of the user's own pairs, and report every decision."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from cosent.data.files import ending_of, format_of, label_values
from cosent.data.manifest import SPLITS
from cosent.errors import InputError
from data_scripts.builder import RawFile
from data_scripts.checks import ANY_SCORE
from data_scripts.corpora import Corpus, unknown_name
from data_scripts.layouts import FORMATS, file_options, find_shape
from data_scripts.queries import Fields, QueryLayout
from data_scripts.sources import Source
from data_scripts.survey import Carve

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
FIXED_RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0), "scores": (ANY_SCORE.low, ANY_SCORE.high)}


def from_own_pairs(name: str, source: Path, arguments) -> Source:
    """Source of the user's own pairs, a file or a folder, with the flags of `prepare`.

    Raises:
        InputError: files, flags or columns that do not go together.
    """
    try:
        paths, decisions = _split_files(source, arguments.format, arguments.leave_out or [])
    except InputError as error:
        if arguments.label_kind is None:  # a corpus of the table, misspelt?
            raise unknown_name(name) from error
        raise
    files: dict[str, list[RawFile]] = {}
    for split in (split for split in SPLITS if split in paths):
        for path in paths[split]:
            shape, words = find_shape(path, arguments)
            files.setdefault(split, []).append(RawFile(path, shape, options=file_options(arguments)))
            decisions.append(f"{path.name}: {split}, {shape.format}, {words}")
        if len(paths[split]) > 1:
            joined = ", ".join(path.name for path in paths[split])
            decisions.append(f"{split}: {len(paths[split])} files, joined ({joined})")
    fields = _fields(files)
    kind = _label_kind(name, files, fields, arguments.label_kind)
    low, high = _label_range(kind, arguments)
    corpus = Corpus(name, "graded" if kind == "scores" else kind, label_min=low, label_max=high)
    warnings, prompt = [], ""
    if fields is not None:
        files = _with_fields(files, scored=kind in ("graded", "scores"), add_prompt=len(fields.prompts) > 1)
        decisions += _decisions(kind, fields)
        warnings += _prompt_warnings(fields)
        prompt = next(iter(fields.prompts)) if len(fields.prompts) == 1 else ""
    carve = _carve(arguments, files)
    if carve:
        together = "Equal pairs" if fields is None else "All pairs of a query"
        if carve.by_sentence:
            together = "Pairs that share a sentence, also through others,"
        warnings.append(
            f"No published split: of the different {'pairs' if fields is None else 'queries'}, a share of "
            f"{carve.validation_share:g} was taken out for validation and {carve.test_share:g} for test, with seed "
            f"{carve.seed}. {together} stay together."
        )
    on_conflict = arguments.on_conflict or "error"
    words = f"own pairs of {source.resolve().name}"
    values = label_values(arguments.label_values)
    return Source(corpus, files, words, warnings, decisions, carve, on_conflict, prompt, values)


def _fields(files: dict[str, list[RawFile]]) -> Fields | None:
    """What the rows of a query hold, over all files; None if there are no such files."""
    found = None
    for file in (file for split in files.values() for file in split):
        if isinstance(file.shape, QueryLayout):
            found = found or Fields()
            found.count(file.from_file(), file.shape)
    return found


def _with_fields(files: dict[str, list[RawFile]], **known: bool) -> dict[str, list[RawFile]]:
    """The files with what is `known` of all of them in the shapes of those with queries."""
    return {
        split: [
            replace(file, shape=replace(file.shape, **known)) if isinstance(file.shape, QueryLayout) else file
            for file in some
        ]
        for split, some in files.items()
    }


def _label_kind(name: str, files: dict[str, list[RawFile]], fields: Fields | None, asked: str | None) -> str:
    """The kind of labels asked for; that of files of queries is clear from whether they have scores."""
    if asked is None and any(not isinstance(file.shape, QueryLayout) for some in files.values() for file in some):
        raise unknown_name(name)
    if fields is None:
        return str(asked)
    if asked == "nli" or (asked in ("graded", "scores") and not fields.scored):
        raise InputError(
            f"--label_kind {asked} needs labels of that kind, and rows of a query with pos and neg have none: only "
            "pos_scores and neg_scores could be grades. Leave --label_kind out (1 for pos, 0 for neg), or add scores."
        )
    return asked or ("scores" if fields.scored else "binary")


def _decisions(kind: str, fields: Fields) -> list[str]:
    labels = "1 for positives, 0 for negatives"
    if kind != "binary":
        labels = "pos_scores and neg_scores, unchanged"
    elif fields.scored:
        labels += " (--label_kind binary: pos_scores and neg_scores are not read)"
    decisions = [f"labels: {labels}"]
    if fields.unread:
        decisions.append(f"not read: {', '.join(sorted(fields.unread))}")
    (prompt, _), *others = fields.prompts.most_common() or [("", 0)]
    if prompt and not others:
        quoted = shlex.quote(prompt)
        decisions.append(
            f"prompt: the same in every row, and not written into the queries; train with --prompt {quoted} '' (none "
            f"for the texts), a cross-encoder with --prompt {quoted}"
        )
    return decisions


def _prompt_warnings(fields: Fields) -> list[str]:
    if len(fields.prompts) < 2:
        return []
    shown = "; ".join(f"{prompt or 'none'!r}: {rows:,} rows" for prompt, rows in fields.prompts.most_common(3))
    return [
        f"The rows have different prompts ({shown}): each is written before its query, in sentence1. Write them before "
        "the queries of the trained model too; --prompt would add one more."
    ]


def _label_range(kind: str, arguments) -> tuple[float, float]:
    given = (arguments.label_min, arguments.label_max)
    if kind in FIXED_RANGES:
        if given != (None, None):
            own = "that of its rows" if kind == "scores" else "a fixed range"
            raise InputError(f"--label_min and --label_max are for --label_kind graded; {kind} has {own}.")
        return FIXED_RANGES[kind]
    if None in given or not given[0] < given[1]:
        raise InputError(
            f"--label_kind graded needs --label_min and --label_max, e.g. 0 and 5, got {given[0]} and {given[1]}. A "
            "range taken from the rows would accept every typing error and change with the file (--label_kind scores "
            "does so, for the scores of a model)."
        )
    return given


def _split_files(source: Path, format: str | None, left_out: list[str]) -> tuple[dict[str, list[Path]], list[str]]:
    if source.is_file():
        if left_out:
            raise InputError(f"--leave_out {' '.join(left_out)}: {source} is one file. Drop the flag.")
        return {"train": [source]}, []
    if not source.is_dir():
        raise InputError(f"--source must be a file or a folder with pairs, got {source}, which does not exist.")
    files = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    candidates = [path for path in files if format or format_of(path, FORMATS)]
    paths: dict[str, list[Path]] = {}
    decisions = []
    for path in files:
        splits = _splits_of(path)
        if path not in candidates:
            if splits:
                raise InputError(
                    f"{path} is {splits[0]} by its name, but no format by its ending: {', '.join(FORMATS)} are read. "
                    "Unpack or rename it, name the format with --format, or move it away."
                )
            decisions.append(f"{path.name}: not read, its ending is none of {', '.join(FORMATS)}")
            continue
        if len(splits) > 1:
            raise InputError(f"{path} could be {' or '.join(splits)} by its name, and no choice is guessed. Rename it.")
        if splits and splits[0] in left_out:
            decisions.append(f"{path.name}: not read, --leave_out {splits[0]}")
        elif splits:
            paths.setdefault(splits[0], []).append(path)
        else:
            decisions.append(f"{path.name}: not read, its name holds no word train, dev, valid or test")
    if not set(left_out) <= {split for path in candidates for split in _splits_of(path)}:
        raise InputError(f"--leave_out {' '.join(left_out)}: {source} has no files of such a split. Correct the flag.")
    kinds = sorted({ending_of(path) for found in paths.values() for path in found})
    if not paths or (len(kinds) > 1 and not format):
        raise InputError(
            f"Expected in {source} files of one format ({', '.join(FORMATS)}) with train, dev (or valid) or test as a "
            f"word of their names, got {', '.join(path.name for path in candidates) or 'none'}. The same pairs in two "
            "formats would be read twice. Name one file with --source, or rename the files."
        )
    return paths, decisions


def _splits_of(path: Path) -> list[str]:
    words = re.findall("[a-z]+", path.stem.lower())
    return [split for split, names in SPLIT_WORDS.items() if set(names) & set(words)]


def _carve(arguments, files: dict) -> Carve | None:
    shares = {"validation": arguments.validation_share, "test": arguments.test_share}
    if not any(shares.values()):
        if arguments.split_by is not None:
            raise InputError("--split_by is about drawing splits: add --validation_share or --test_share.")
        return None
    if set(files) != {"train"} or not all(0 <= share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        raise InputError(
            "--validation_share and --test_share take pairs out of a single train split and leave some there, got the "
            f"splits {', '.join(files)} and the shares {shares['validation']:g} and {shares['test']:g}. Existing "
            "splits are never drawn again. Drop the shares, or make their sum less than 1."
        )
    return Carve(shares["validation"], shares["test"], arguments.seed, arguments.split_by == "sentence")
