"""Prepare a corpus: raw files, the Hub or the demo corpus -> `{train,validation,test}.parquet` and MANIFEST.json.

    python -m data_scripts.prepare lcqmc --source raw/senteval_cn
    python -m data_scripts.prepare stsb --source hub
    python -m data_scripts.prepare demo
    python -m data_scripts.prepare my_pairs --source pairs.csv --label_kind binary --validation_share 0.1
    python -m data_scripts.prepare my_queries --source bge.jsonl --validation_share 0.1

Training reads only what this job writes, never a raw file. A corpus that is not in the table needs --label_kind, unless
its rows are queries with positives and negatives: {"query", "pos": [..], "neg": [..]} (FlagEmbedding; with pos_scores
and neg_scores, these become the labels) or columns anchor, positive, negative.
"""

import argparse
import os
import re
import shutil
from pathlib import Path

from cosent.data.manifest import MANIFEST_NAME, SPLITS, Manifest
from cosent.data.records import ENCODINGS, FORMATS
from cosent.errors import InputError, messages_for_users
from data_scripts.corpora import CORPORA, OWN_LABEL_KINDS, unknown_name
from data_scripts.description import describe, shared_rows, table

FORMAT_NAMES = tuple(dict.fromkeys(format for format in FORMATS.values() if format != "txt"))
OF_EVERY_CORPUS = ("name", "source", "output", "overwrite", "on_bad_rows", "seed")  # other flags are of own pairs


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m data_scripts.prepare",
        usage="python -m data_scripts.prepare NAME [--source FOLDER] [--flag value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(CORPORA)}, or a name for pairs of your own")
    parser.add_argument("--source", help="folder with the raw rows (own pairs: or a file), or `hub`; demo needs none")
    parser.add_argument("--output", type=Path, help="folder to write, data/NAME by default")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder that was prepared earlier")
    parser.add_argument("--on_bad_rows", choices=("error", "skip"), default="error", help="skip: count and list them")
    own = parser.add_argument_group("pairs of your own")
    own.add_argument("--label_kind", choices=OWN_LABEL_KINDS, help="scores: any numbers, as those of a reranker")
    own.add_argument("--label_min", type=float, help="lowest possible graded label")
    own.add_argument("--label_max", type=float, help="highest possible graded label")
    own.add_argument("--format", choices=FORMAT_NAMES, help="default: from the suffix")
    own.add_argument("--header", action="store_true", default=None, help="line 1 holds column names")
    own.add_argument("--no_header", action="store_false", dest="header", default=None, help="line 1 is a pair")
    for column in ("sentence1", "sentence2", "label"):
        column_help = "name of the column, or its position from 0; of several names, a file's first"
        own.add_argument(f"--{column}_column", nargs="+", metavar="COLUMN", help=column_help)
    label_help = "all labels and what they stand for, as in 否=0 是=1; default: 是, 相似, true and yes are 1, and so on"
    own.add_argument("--label_values", nargs="+", metavar="LABEL=VALUE", help=label_help)
    own.add_argument("--sheet", help="sheet to read of a workbook with several")
    own.add_argument("--encoding", choices=ENCODINGS, help="encoding of text, utf-8 by default")
    own.add_argument("--leave_out", nargs="+", choices=SPLITS, help="splits of the folder not to read")
    conflict_help = "pairs with two different labels: error (default), drop or keep them"
    own.add_argument("--on_conflict", choices=("error", "drop", "keep"), help=conflict_help)
    own.add_argument("--validation_share", type=float, help="share of the pairs, for a lone train split")
    own.add_argument("--test_share", type=float, help="likewise")
    split_help = "pairs that never get into two splits: equal ones (default), or all that share sentences"
    own.add_argument("--split_by", choices=("pair", "sentence"), help=split_help)
    own.add_argument("--seed", type=int, default=42, help="seed of the shares")
    return parser.parse_args(argv)


def main(arguments: argparse.Namespace) -> Path:
    """Prepares one corpus and returns its folder.

    Raises:
        InputError: wrong flags, files or rows; nothing has been written then.
    """
    check_flags(arguments)
    output = arguments.output or Path("data", arguments.name)
    refuse_to_replace(output, arguments.overwrite)
    source = open_source(arguments)
    for decision in source.decisions:
        print(decision)
    manifest = write(source, output)
    print(table(manifest))
    if arguments.name in CORPORA:  # pairs of your own have a warning with these numbers
        for split, rows in shared_rows(output).items():
            print(f"{split}: {rows:,} rows share a sentence with train")
    print(f"wrote {output}")
    return output


def check_flags(arguments: argparse.Namespace) -> None:
    name, source = arguments.name, arguments.source
    corpus = CORPORA.get(name)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"NAME becomes a folder below data/: expected letters, digits, _ . -, got {name!r}.")
    if corpus is None and not arguments.label_kind and not Path(source or "").exists():
        raise unknown_name(name)
    own = [flag for flag, value in vars(arguments).items() if flag not in OF_EVERY_CORPUS and value is not None]
    if corpus is not None and own:
        flags = ", ".join(f"--{flag}" for flag in own)
        raise InputError(
            f"{name} is in the table, which already sets {flags}. Drop it, or give your own pairs another name."
        )
    if corpus is not None and corpus.generated and source:
        raise InputError(f"{name} comes with this project and reads no --source: drop that flag.")
    if not source and not (corpus is not None and corpus.generated):
        hub = ", or `hub`" if corpus is not None and corpus.hub_repository else ""
        raise InputError(f"{name} needs --source: the folder with its raw files{hub}.")


def refuse_to_replace(output: Path, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    ours = output.is_dir() and all(path.name == MANIFEST_NAME or path.suffix == ".parquet" for path in output.iterdir())
    if not (ours and (output / MANIFEST_NAME).is_file()):
        raise InputError(f"{output} exists and is not a prepared corpus: it is not replaced. Choose another --output.")
    if not overwrite:
        raise InputError(f"{output} holds a prepared corpus. Replace it with --overwrite, or choose another --output.")


def open_source(arguments: argparse.Namespace):
    from data_scripts import sources
    from data_scripts.own import from_own_pairs

    corpus = CORPORA.get(arguments.name)
    if corpus is None:
        source = from_own_pairs(arguments.name, Path(arguments.source), arguments)
    elif corpus.generated:
        source = sources.from_demo(corpus)
    elif arguments.source == "hub":
        source = sources.from_hub(corpus)
    else:
        source = sources.from_folder(corpus, Path(arguments.source))
    source.on_bad_rows = arguments.on_bad_rows
    return source


def write(source, output: Path) -> Manifest:
    """Builds next to `output` and moves the result there at the end, so that a failure leaves nothing half written."""
    from data_scripts import builder

    work = output.parent / f".{output.name}.{os.getpid()}.partial"
    staging = work / "staging"
    staging.mkdir(parents=True)
    try:
        tallies = builder.build(staging, work, source)
        manifest = describe(source, staging, tallies, builder.VERSION)
        manifest.save(staging)
        if output.exists():
            output.rename(work / "replaced")
        staging.rename(output)
    finally:
        shutil.rmtree(work)
    return manifest


if __name__ == "__main__":
    with messages_for_users():
        main(parse())
