"""Find the files, splits and columns of the user's own pairs, and report every decision."""

import re
from pathlib import Path

from cosent.errors import InputError
from cosent.schema import SPLITS
from data_scripts.builder import Carve, RawFile
from data_scripts.checks import RowError
from data_scripts.corpora import Corpus
from data_scripts.readers import COLUMN_NAMES, Layout, find_columns, read_records
from data_scripts.sources import Source

FORMATS = {".tsv": "tsv", ".txt": "tsv", ".data": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"}
SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("dev", "valid", "validation"),
    "test": ("test", "testing"),
}
RANGES = {"binary": (0.0, 1.0), "nli": (0.0, 2.0)}


def from_own_pairs(name: str, source: Path, arguments) -> Source:
    """Source of the user's own pairs, a file or a folder, with the flags of `prepare`.

    Raises:
        InputError: files, flags or columns that do not go together.
    """
    low, high = _label_range(arguments)
    corpus = Corpus(name=name, label_kind=arguments.label_kind, label_min=low, label_max=high)
    paths, decisions = _split_files(source, arguments.format)
    files = {}
    for split in (split for split in SPLITS if split in paths):
        for path in paths[split]:
            layout, decided = _layout(path, arguments)
            files.setdefault(split, []).append(RawFile(path, layout))
            decisions.append(f"{path.name}: {split}, {layout.format}, {decided}")
    carve = _carve(arguments, files)
    warnings = []
    if carve:
        warnings.append(
            f"No published split: of the different pairs, a share of {carve.validation_share:g} was taken out for "
            f"validation and {carve.test_share:g} for test, with seed {carve.seed}. Equal pairs stay together; one "
            "sentence may still be in several splits (see the audit)."
        )
    return Source(corpus, files, f"own pairs of {source.resolve().name}", warnings, decisions, carve)


def _label_range(arguments) -> tuple[float, float]:
    given = (arguments.label_min, arguments.label_max)
    if arguments.label_kind != "graded":
        if given != (None, None):
            raise InputError(
                f"--label_min and --label_max are for --label_kind graded; {arguments.label_kind} has a fixed range."
            )
        return RANGES[arguments.label_kind]
    if None in given or not given[0] < given[1]:
        raise InputError(
            f"--label_kind graded needs --label_min and --label_max, e.g. 0 and 5, got {given[0]} and {given[1]}. A "
            "range taken from the rows would accept every typing error and change with the file."
        )
    return given


def _split_files(source: Path, format: str | None) -> tuple[dict[str, list[Path]], list[str]]:
    if source.is_file():
        return {"train": [source]}, []
    if not source.is_dir():
        raise InputError(f"--source must be a file or a folder with pairs, got {source}, which does not exist.")
    files = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    candidates = [path for path in files if format or path.suffix in FORMATS]
    paths: dict[str, list[Path]] = {}
    decisions = []
    for path in files:
        words = re.findall("[a-z]+", path.stem.lower())
        splits = [split for split, names in SPLIT_WORDS.items() if set(names) & set(words)]
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
        if splits:
            paths.setdefault(splits[0], []).append(path)
        else:
            decisions.append(f"{path.name}: not read, its name holds no word train, dev, valid or test")
    kinds = sorted({path.suffix for found in paths.values() for path in found})
    if not paths or (len(kinds) > 1 and not format):
        raise InputError(
            f"Expected in {source} files of one format ({', '.join(FORMATS)}) with train, dev (or valid) or test as a "
            f"word of their names, got {', '.join(path.name for path in candidates) or 'none'}. The same pairs in two "
            "formats would be read twice. Name one file with --source, or rename the files."
        )
    return paths, decisions


def _layout(path: Path, arguments) -> tuple[Layout, str]:
    format = arguments.format or FORMATS.get(path.suffix)
    if format is None:
        raise InputError(f"The format of {path} is not clear from its name. Pass --format tsv, csv or jsonl.")
    flags = (arguments.sentence1_column, arguments.sentence2_column, arguments.label_column)
    wanted = tuple(int(flag) if flag and flag.isdecimal() else (flag,) if flag else None for flag in flags)
    if format == "jsonl":
        if any(isinstance(column, int) for column in wanted) or arguments.header is not None:
            raise InputError(f"{path} is JSON lines: columns are named by their keys, and there is no header.")
        columns = tuple(column or names for column, names in zip(wanted, COLUMN_NAMES, strict=True))
        return Layout("jsonl", columns=columns, width=None), "columns by key"
    names = _first_row(path, format)
    header, why = _has_header(names, wanted, arguments.header)
    if not header and any(isinstance(column, tuple) for column in wanted):
        raise InputError(
            f"{path} is read without a header (--no_header), so its columns have no names: give 0-based positions, got "
            f"{', '.join(flag for flag in flags if flag)}."
        )
    by_name = [header and bool(set(known) & set(names)) for known in COLUMN_NAMES]
    if len(names) != 3 and any(column is None and not found for column, found in zip(wanted, by_name, strict=True)):
        raise InputError(
            f"{path}, line 1: expected 3 columns (sentence1, sentence2, label) or a header with such names, got "
            f"{len(names)}: {names}. Taking the first three could train on an id. Pass --sentence1_column, "
            "--sentence2_column and --label_column (names of the header, or positions from 0), or --format."
        )
    columns = tuple(
        column if column is not None else COLUMN_NAMES[place] if by_name[place] else place
        for place, column in enumerate(wanted)
    )
    layout = Layout(format, header, columns, width=None)
    chosen = ", ".join(names[position] if header else str(position) for position in find_columns(names, layout, path))
    return layout, f"{why}, columns {chosen}"


def _first_row(path: Path, format: str) -> list[str]:
    for number, _, fields in read_records(path, format):
        if isinstance(fields, RowError):
            raise InputError(f"{path}, line {number}: {fields}. The columns are read from it: correct the line.")
        if fields:
            return [field.strip() for field in fields]
    raise InputError(f"{path} is empty: it has no rows. Nothing could be learnt from it: name another file.")


def _has_header(names: list[str], wanted: tuple, flag: bool | None) -> tuple[bool, str]:
    """Whether line 1 is a header, and why: only if it holds known (or requested) column names."""
    if flag is not None:
        return flag, "line 1 is a header (--header)" if flag else "no header (--no_header)"
    if any(isinstance(column, tuple) for column in wanted):
        return True, "line 1 is a header (columns are asked for by name)"
    if all(set(known) & set(names) for known in COLUMN_NAMES[:2]):
        return True, "line 1 is a header (it holds column names; --no_header if not)"
    return False, "no header (line 1 holds no known column name; --header if it is one)"


def _carve(arguments, files: dict) -> Carve | None:
    shares = {"validation": arguments.validation_share, "test": arguments.test_share}
    if not any(shares.values()):
        return None
    if set(files) != {"train"} or not all(0 <= share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
        raise InputError(
            "--validation_share and --test_share take pairs out of a single train split and leave some there, got the "
            f"splits {', '.join(files)} and the shares {shares['validation']:g} and {shares['test']:g}. Existing "
            "splits are never drawn again. Drop the shares, or make their sum less than 1."
        )
    return Carve(shares["validation"], shares["test"], arguments.seed)
