"""Prepare a corpus: raw files, the Hub or the demo grammar -> `{train,validation,test}.parquet` and MANIFEST.json.

    python -m data_scripts.prepare lcqmc --source raw/senteval_cn
    python -m data_scripts.prepare stsb --source hub
    python -m data_scripts.prepare demo
    python -m data_scripts.prepare my_pairs --source pairs.csv --label_kind binary --validation_share 0.1

Training reads only what this job writes, never a raw file. A corpus that is not in the table needs --label_kind.
"""

import argparse
import os
import re
import shutil
from collections import Counter
from pathlib import Path

from cosent.errors import InputError, messages_for_users
from cosent.schema import LABEL_KINDS, MANIFEST_NAME, SPLITS, Manifest, sha256_of_file
from data_scripts.corpora import CORPORA, unknown_name

MOST_HISTOGRAM_KEYS = 20  # if there are more distinct labels, they are counted in ten bins


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
    own.add_argument("--label_kind", choices=LABEL_KINDS)
    own.add_argument("--label_min", type=float, help="lowest possible graded label")
    own.add_argument("--label_max", type=float, help="highest possible graded label")
    own.add_argument("--format", choices=("tsv", "csv", "jsonl"), help="default: from the suffix")
    own.add_argument("--header", action="store_true", default=None, help="line 1 holds column names")
    own.add_argument("--no_header", action="store_false", dest="header", default=None, help="line 1 is a pair")
    for column in ("sentence1", "sentence2", "label"):
        own.add_argument(f"--{column}_column", help="name of the column, or its position from 0")
    own.add_argument("--validation_share", type=float, default=0.0, help="share of the pairs, for a lone train split")
    own.add_argument("--test_share", type=float, default=0.0, help="likewise")
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
    manifest = write(source, output, arguments.on_bad_rows)
    print(table(manifest))
    print(f"wrote {output}")
    return output


def check_flags(arguments: argparse.Namespace) -> None:
    name, known = arguments.name, arguments.name in CORPORA
    own = [f"{column}_column" for column in ("sentence1", "sentence2", "label")]
    own += ["label_kind", "label_min", "label_max", "format", "header"]
    given = [f"--{flag}" for flag in own if getattr(arguments, flag) is not None]
    given += [f"--{flag}" for flag in ("validation_share", "test_share") if getattr(arguments, flag)]
    if not known and not arguments.label_kind:
        raise unknown_name(name)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"NAME becomes a folder below data/: expected letters, digits, _ . -, got {name!r}.")
    if known and given:
        raise InputError(
            f"{name} is in the table, which already sets {', '.join(given)}. The two could disagree: drop these "
            "flags, or give your own pairs another name."
        )
    generated = known and CORPORA[name].generated
    if generated and arguments.source:
        raise InputError(f"{name} is written by a grammar and reads no --source: drop that flag.")
    if not generated and not arguments.source:
        hub = ", or `hub`" if known and CORPORA[name].hub_repository else ""
        raise InputError(f"{name} needs --source: the folder with its raw files{hub}.")


def refuse_to_replace(output: Path, overwrite: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    ours = output.is_dir() and all(path.name == MANIFEST_NAME or path.suffix == ".parquet" for path in output.iterdir())
    if not (ours and (output / MANIFEST_NAME).is_file()):
        raise InputError(f"{output} exists and is not a prepared corpus: it is not replaced. Choose another --output.")
    if not overwrite:
        raise InputError(
            f"{output} already holds a prepared corpus. Replacing it would change what earlier runs refer to: pass "
            "--overwrite to do so, or choose another --output."
        )


def open_source(arguments: argparse.Namespace):
    from data_scripts import sources
    from data_scripts.own_pairs import from_own_pairs

    if arguments.label_kind:
        return from_own_pairs(arguments.name, Path(arguments.source), arguments)
    corpus = CORPORA[arguments.name]
    if corpus.generated:
        return sources.from_demo(corpus)
    if arguments.source == "hub":
        return sources.from_hub(corpus)
    return sources.from_folder(corpus, Path(arguments.source))


def write(source, output: Path, on_bad_rows: str) -> Manifest:
    """Builds next to `output` and moves the result there at the end, so that a failure leaves nothing half written."""
    from data_scripts import builder

    work = output.parent / f".{output.name}.{os.getpid()}.partial"
    staging = work / "staging"
    staging.mkdir(parents=True)
    try:
        config = {"files": source.files, "labels": source.labels, "on_bad_rows": on_bad_rows, "carve": source.carve}
        tallies = builder.build(staging, work, config)
        manifest = describe(source, staging, tallies, builder.VERSION)
        manifest.save(staging)
        if output.exists():
            output.rename(work / "replaced")
        staging.rename(output)
    finally:
        shutil.rmtree(work)
    return manifest


def describe(source, folder: Path, tallies: dict, version: str) -> Manifest:
    corpus = source.corpus
    splits, warnings = {}, list(source.warnings)
    for split in SPLITS:
        path = folder / f"{split}.parquet"
        if not path.exists():
            continue
        labels = read_labels(path)
        published = corpus.published_rows.get(split)
        if published not in (None, len(labels)):
            warnings.append(f"{split} has {len(labels):,} rows, the published corpus has {published:,}.")
        if split == "train" and len(set(labels)) == 1:
            warnings.append(f"every train label is {labels[0]:g}: a loss that compares labels will learn nothing.")
        tally = tallies.get(split)  # a carved split was read, and is counted, with train
        splits[split] = {
            "rows": len(labels),
            "sha256": sha256_of_file(path),
            "label_histogram": histogram(labels, corpus.label_min, corpus.label_max),
            "source_files": tally.files if tally else [],
            "published_rows": published,
            "left_out": dict(tally.left_out) if tally else {},
            "bad_rows": tally.bad_rows if tally else [],
        }
        warnings += [f"{split}: {rows:,} left out, {reason}." for reason, rows in splits[split]["left_out"].items()]
    return Manifest(
        name=corpus.name,
        label_kind=corpus.label_kind,
        label_min=corpus.label_min,
        label_max=corpus.label_max,
        max_length={"bi_encoder": corpus.bi_encoder_length, "cross_encoder": corpus.cross_encoder_length},
        splits=splits,
        absent_splits=[split for split in SPLITS if split not in splits],
        warnings=warnings,
        source=source.words,
        builder_version=version,
    )


def read_labels(path: Path) -> list[float]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path, columns=["label"])["label"].to_pylist()


def histogram(labels: list[float], low: float, high: float) -> dict[str, int]:
    """Rows by label, in ascending order; many distinct labels are counted in ten bins of equal width instead."""
    counts = Counter(labels)
    if len(counts) <= MOST_HISTOGRAM_KEYS:
        return {f"{label:g}": counts[label] for label in sorted(counts)}
    width = (high - low) / 10
    bins = Counter(min(int((label - low) / width), 9) for label in labels)
    return {f"{low + width * place:g}..{low + width * (place + 1):g}": bins[place] for place in range(10)}


def table(manifest: Manifest) -> str:
    """Summary of a prepared corpus as text."""
    lines = [f"{manifest.name}: {manifest.label_kind} labels, {manifest.source}"]
    lines.append(f"{'split':<12}{'rows':>10}{'published':>12}  labels")
    for split in SPLITS:
        if split not in manifest.splits:
            lines.append(f"{split:<12}{'absent':>10}")
            continue
        facts = manifest.splits[split]
        published = f"{facts['published_rows']:,}" if facts["published_rows"] else "-"
        labels = "  ".join(f"{label}: {rows:,}" for label, rows in facts["label_histogram"].items())
        lines.append(f"{split:<12}{facts['rows']:>10,}{published:>12}  {labels}")
    lines += [f"warning: {warning}" for warning in manifest.warnings]
    return "\n".join(lines)


if __name__ == "__main__":
    with messages_for_users():
        main(parse())
