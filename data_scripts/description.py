"""Describe a prepared folder: its manifest, and the manifest as text."""

from collections import Counter
from pathlib import Path

from cosent.data.manifest import NLI_CLASSES, SPLITS, Manifest, sha256_of_file
from cosent.errors import InputError
from data_scripts.pairs import LARGEST, Tally

MOST_HISTOGRAM_KEYS = 20  # if there are more distinct labels, they are counted in ten bins


def describe(source, folder: Path, tallies: dict, version: str) -> Manifest:
    """The manifest of the splits in `folder`."""
    corpus, warnings, splits = source.corpus, list(source.warnings), {}
    labels = {split: read_columns(path, "label")["label"].to_numpy() for split, path in split_files(folder).items()}
    low, high = corpus.label_min, corpus.label_max
    if high == LARGEST:  # scores: their own range
        low, high = (float(end(list(map(end, labels.values())))) for end in (min, max))
        if low == high:
            raise InputError(f"Expected scores that differ, got {low:g} for every pair. Check them.")
    for split, some in labels.items():
        tally = tallies.get(split, Tally())  # a carved split was read, and is counted, with train
        splits[split] = {
            "rows": len(some),
            "sha256": sha256_of_file(folder / f"{split}.parquet"),
            "label_histogram": histogram(some, low, high),
            "source_files": tally.files,
            "published_rows": corpus.published_rows.get(split),
            "left_out": dict(tally.left_out),
            "repeated_rows": tally.repeated,
            "contradictory_pairs": tally.contradictory,
            "bad_rows": tally.bad_rows,
        }
        warnings += caveats(split, splits[split], high, tally.words)
    if source.on_conflict is not None and (shared := shared_rows(folder)):
        counts = " and ".join(f"{rows:,} of {splits[split]['rows']:,} {split} rows" for split, rows in shared.items())
        where = "" if source.carve else "to one file "
        warnings.append(
            f"{counts} share a sentence with train, which flatters their figures: pass --split_by sentence {where}to "
            "keep such pairs together."
        )
    return Manifest(
        name=corpus.name,
        label_kind=corpus.label_kind,
        label_min=low,
        label_max=high,
        max_length=dict(zip(("bi_encoder", "cross_encoder"), corpus.max_length, strict=True)),
        splits=splits,
        absent_splits=[split for split in SPLITS if split not in splits],
        warnings=warnings,
        source=source.words,
        builder_version=version,
        prompt=source.prompt,
    )


def split_files(folder: Path) -> dict[str, Path]:
    return {split: path for split in SPLITS if (path := folder / f"{split}.parquet").exists()}


def read_columns(path: Path, *names: str):
    """A `pyarrow.Table` of some columns."""
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path, columns=list(names))


def shared_rows(folder: Path) -> dict[str, int]:
    """By split, the rows that have a sentence of train; splits without any are left out."""
    import pyarrow
    import pyarrow.compute as pc

    tables = {split: read_columns(path, "sentence1", "sentence2") for split, path in split_files(folder).items()}
    train = tables.pop("train", None)
    if train is None:
        return {}
    seen = pc.unique(pyarrow.chunked_array(train["sentence1"].chunks + train["sentence2"].chunks))
    shared = {
        split: pc.sum(pc.or_(*(pc.is_in(column, value_set=seen) for column in rows.columns))).as_py()
        for split, rows in tables.items()
    }
    return {split: count for split, count in shared.items() if count}


def caveats(split: str, facts: dict, label_max: float, words: Counter) -> list[str]:
    """What users of the figures should know of a split."""
    warnings = []
    if facts["published_rows"] not in (None, facts["rows"]):
        warnings.append(f"{split} has {facts['rows']:,} rows, the published corpus has {facts['published_rows']:,}.")
    (label, *others) = facts["label_histogram"]
    if split == "train" and not others:
        warnings.append(f"every train label is {label}: a loss that compares labels will learn nothing.")
        if float(label) == label_max:
            warnings[-1] += " Train with --loss infonce, whose negatives are the other sentences of the batch."
    if facts["repeated_rows"]:
        warnings.append(
            f"{split}: {facts['repeated_rows']:,} rows repeat an earlier pair with its label. They are kept."
        )
    if facts["contradictory_pairs"] and "contradictory pair" not in facts["left_out"]:
        warnings.append(f"{split}: {facts['contradictory_pairs']:,} pairs have two different labels. They are kept.")
    warnings += [f"{split}: {rows:,} left out, {reason}." for reason, rows in facts["left_out"].items()]
    if words:
        read = ", ".join(f"{word} as {value} ({rows:,} rows)" for (word, value), rows in words.items())
        warnings.append(f"{split}: labels are read by their words: {read}.")
    return warnings


def histogram(labels, low: float, high: float) -> dict[str, int]:
    """Rows by label, in ascending order; many distinct labels are counted in ten bins of equal width instead."""
    import numpy as np

    distinct, counts = np.unique(labels, return_counts=True)
    if len(distinct) <= MOST_HISTOGRAM_KEYS:
        return {f"{label:g}": int(count) for label, count in zip(distinct, counts, strict=True)}
    counts, edges = np.histogram(labels, bins=10, range=(low, high))
    names = (f"{edges[place]:g}..{edges[place + 1]:g}" for place in range(10))
    return dict(zip(names, map(int, counts), strict=True))


def shown_histogram(counts: dict[str, int], manifest: Manifest) -> str:
    """A histogram on one line; the classes of NLI have their names."""
    names = {str(rank): name for rank, name in enumerate(NLI_CLASSES)} if manifest.label_kind == "nli" else {}
    return "  ".join(f"{names.get(label, label)}: {rows:,}" for label, rows in counts.items())


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
        labels = shown_histogram(facts["label_histogram"], manifest)
        lines.append(f"{split:<12}{facts['rows']:>10,}{published:>12}  {labels}")
        if sum(file["rows"] for file in facts["source_files"]) not in (0, facts["rows"]):
            lines += [f"{'':<12}{file['rows']:>10,} rows of {file['name']}" for file in facts["source_files"]]
    lines += [f"warning: {warning}" for warning in manifest.warnings]
    return "\n".join(lines)
