"""Prepare a corpus from raw files, the Hub or the package: `{train,validation,test}.parquet` and MANIFEST.json.

    cosent prepare lcqmc --source raw/senteval_cn
    cosent prepare stsb --source hub
    cosent prepare demo
    cosent prepare my_pairs --source pairs.csv --label_kind binary --validation_share 0.1
    cosent prepare my_queries --source bge.jsonl --validation_share 0.1

Training reads only what this job writes, never a raw file. A corpus that is not in the table needs --label_kind, unless
its rows are queries with positives and negatives: {"query", "pos": [..], "neg": [..]} (FlagEmbedding; with pos_scores
and neg_scores, these become the labels), or columns anchor, positive, negative, or query, response, rejected_response.
"""

import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from cosent.atomic import complete_folder, locked
from cosent.data.corpus import MANIFEST_NAME, Manifest, reversed_labels
from cosent.data.files import LabelArguments, TableArguments
from cosent.errors import InputError
from cosent.flags import REQUIRED, option

from . import sources
from .corpora import CORPORA, OWN_LABEL_KINDS, unknown_name
from .description import dataset_of, describe, fitting_loss, table


@dataclass
class PrepareArguments:
    """Corpus, source and output."""

    name: str = option(REQUIRED, f"One of {', '.join(CORPORA)}, or a name for pairs of your own.", positional=True)
    source: str | None = option(None, "Folder with the raw files (own pairs: or a file), or hub; not for demo.")
    output: str | None = option(None, "Folder to write; default: data/NAME.")
    overwrite: bool = option(False, "Replace a folder that was prepared earlier.")
    on_bad_rows: str = option("error", "Stop at a bad row, or skip, count and list it.", ("error", "skip"))


@dataclass(kw_only=True)
class OwnPairsArguments(TableArguments, LabelArguments):
    """Your own pairs."""

    label_kind: str | None = option(None, "Kind of labels; scores: any numbers, e.g. of a reranker.", OWN_LABEL_KINDS)
    label_min: float | None = option(None, "Lowest possible graded label; default: 0.")
    label_max: float | None = option(None, "Highest possible graded label.")
    label_column: list[str] | None = option(
        None,
        "Name or position of the column of labels; of several, the first that a file has; default: label, score, ...",
    )
    on_conflict: str = option(
        "error", "Stop at pairs with two different labels, drop or keep them.", ("error", "drop", "keep")
    )
    validation_share: float = option(
        0.0, "Share of the pairs to hold out for validation, where there is only a train split."
    )
    test_share: float = option(0.0, "Share of the pairs to hold out for test, likewise.")
    split_by: str = option(
        "pair", "Pairs that stay in one split: equal ones, or all that share a sentence.", ("pair", "sentence")
    )


def main(arguments: PrepareArguments, own: OwnPairsArguments) -> None:
    """Prepares one corpus."""
    check_flags(arguments, own)
    output = Path(arguments.output or Path("data", arguments.name))
    with locked(output):
        refuse_to_replace(output, arguments.overwrite)
        source = open_source(arguments, own)
        for decision in source.decisions:
            print(decision)
        manifest = write(source, output, arguments.overwrite)
    print(table(manifest))
    if (question := reversed_labels(dataset_of(output, next(iter(manifest.splits))), manifest)) is not None:
        print(f"warning: {question}.")
    print(f"wrote {output}")
    loss = fitting_loss(output, manifest) if "train" in manifest.splits else None
    if loss is not None:
        corpus = str(output.name if output.parent == Path("data") else output)
        words = ["--corpus", corpus, *(["--loss", loss] if loss == "cosent" else [])]
        words += [] if arguments.name in CORPORA else ["--model_name_or_path", "similar"]
        print(f"next: cosent train {shlex.join(words)}")


def check_flags(arguments: PrepareArguments, own: OwnPairsArguments) -> None:
    name, source = arguments.name, arguments.source
    corpus = CORPORA.get(name)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"NAME becomes a folder below data/: expected letters, digits, _ . -, got {name!r}.")
    if source not in (None, "hub") and not Path(source).exists():
        raise InputError(f"--source {source}: there is no such file or folder. Correct the path.")
    if corpus is None and not own.label_kind and not Path(source or "").exists():
        raise unknown_name(name)
    if corpus is not None and own != OwnPairsArguments():
        raise InputError(
            f"{name} is in the table, which sets its labels, columns and splits: leave --label_kind and other flags of "
            "own pairs out, or give your pairs another name."
        )
    if name == "demo" and source:
        raise InputError("demo comes with this project and reads no --source: drop that flag.")
    if not source and name != "demo":
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


def open_source(arguments: PrepareArguments, own: OwnPairsArguments):
    corpus = CORPORA.get(arguments.name)
    if corpus is None:
        source = sources.from_own_pairs(arguments.name, Path(arguments.source), own)
    elif arguments.source is None:
        source = sources.from_demo(corpus)
    elif arguments.source == "hub":
        source = sources.from_hub(corpus)
    else:
        source = sources.from_folder(corpus, Path(arguments.source))
    source.on_bad_rows = arguments.on_bad_rows
    return source


def write(source, output: Path, overwrite: bool) -> Manifest:
    """Builds next to `output` and moves the result there at the end, so that a failure leaves nothing half written."""
    from . import builder

    with complete_folder(output, overwrite) as folder:
        work = folder / "work"
        work.mkdir()
        tallies = builder.build(folder, work, source)
        shutil.rmtree(work)
        manifest = describe(source, folder, tallies)
        manifest.save(folder)
    return manifest
