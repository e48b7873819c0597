"""Description of a prepared folder: the manifest, and the manifest as text."""

from pathlib import Path

import numpy as np

from cosent.atomic import sha256_of_file
from cosent.data.corpus import (
    SPLITS,
    Manifest,
    labels_of,
    sentence_groups,
    similar,
    unordered_pairs,
)
from cosent.data.labels import LARGEST, NLI_CLASSES
from cosent.errors import InputError

from .pairs import Tally

MOST_HISTOGRAM_KEYS = 20  # if there are more distinct labels, they are counted in ten bins


def dataset_of(folder: Path, split: str):
    """The rows of a split of a prepared folder, as a `datasets.Dataset`."""
    import datasets
    import pyarrow.parquet

    return datasets.Dataset(pyarrow.parquet.read_table(folder / f"{split}.parquet"))


def fitting_loss(folder: Path, manifest: Manifest) -> str | None:
    """Suitable loss for the train split; None if no loss could learn from the labels."""
    rows, least = dataset_of(folder, "train"), manifest.similar_from
    labels = labels_of(rows)
    negatives = similar(labels, least).any() and len(np.unique(sentence_groups(rows, least))) > 1
    if labels.min() < labels.max():
        return "cosent_in_batch" if negatives else "cosent"
    return "infonce" if negatives else None


def describe(source, folder: Path, tallies: dict) -> Manifest:
    """The manifest of the splits in `folder`."""
    corpus, warnings, splits = source.corpus, list(source.warnings), {}
    rows = {split: dataset_of(folder, split) for split in SPLITS if (folder / f"{split}.parquet").exists()}
    labels = {split: labels_of(pairs) for split, pairs in rows.items()}
    low, high = corpus.label_min, corpus.label_max
    if high == LARGEST:  # scores: their own range
        low, high = (float(end(end(values) for values in labels.values())) for end in (min, max))
        if low == high:
            raise InputError(f"Expected scores that differ, got {low:g} for every pair. Check them.")
    own_splits = source.on_conflict is not None and "train" in rows and len(rows) > 1
    seen = {text for pair in unordered_pairs(rows["train"]) for text in pair} if own_splits else set()
    for split, pairs in rows.items():
        tally = tallies.get(split, Tally())  # a carved split was read, and is counted, with train
        splits[split] = {
            "rows": len(pairs),
            "sha256": sha256_of_file(folder / f"{split}.parquet"),
            "label_histogram": histogram(labels[split], low, high),
            "source_files": tally.files,
            "published_rows": corpus.published_rows.get(split),
            "left_out": dict(tally.left_out),
            "repeated_rows": tally.repeated,
            "contradictory_pairs": tally.contradictory,
            "bad_rows": tally.bad_rows,
        }
        warnings += caveats(split, splits[split], tally.words)
        if split == "train" or not own_splits:
            continue
        if shared := sum(not seen.isdisjoint(pair) for pair in unordered_pairs(pairs)):
            warnings.append(
                f"{shared:,} of {len(pairs):,} {split} rows share a sentence with train, which flatters their figures: "
                f"pass --split_by sentence {'' if any(source.shares.values()) else 'to one file '}to keep such pairs "
                "together."
            )
    manifest = Manifest(
        name=corpus.name,
        label_kind=corpus.label_kind,
        label_min=low,
        label_max=high,
        max_length=dict(zip(("bi_encoder", "cross_encoder"), corpus.max_length, strict=True)),
        splits=splits,
        absent_splits=[split for split in SPLITS if split not in splits],
        warnings=warnings,
        source=source.words,
        terms=corpus.terms,
    )
    if "train" in splits and len(splits["train"]["label_histogram"]) == 1:
        (label,) = splits["train"]["label_histogram"]
        remedy = "Add pairs of another label, with sentences of another meaning."
        if fitting_loss(folder, manifest) == "infonce":
            remedy = "Train with --loss infonce, whose negatives are the other sentences of the batch."
        warnings.append(f"every train label is {label}: a loss that compares labels will learn nothing. {remedy}")
    return manifest


def caveats(split: str, facts: dict, words: dict) -> list[str]:
    """Caveats on the figures of a split."""
    warnings = []
    if facts["published_rows"] not in (None, facts["rows"]):
        warnings.append(f"{split} has {facts['rows']:,} rows, the published corpus has {facts['published_rows']:,}.")
    if facts["repeated_rows"]:
        warnings.append(
            f"{facts['repeated_rows']:,} rows in files of {split} repeat an earlier pair with its label. They are kept."
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
    distinct, counts = np.unique(labels, return_counts=True)
    if len(counts) <= MOST_HISTOGRAM_KEYS:
        return {f"{label:g}": int(count) for label, count in zip(distinct, counts, strict=True)}
    bins, edges = np.histogram(labels, bins=10, range=(low, high))
    names = (f"{first:g}..{last:g}" for first, last in zip(edges, edges[1:], strict=False))
    return dict(zip(names, map(int, bins), strict=True))


def shown_histogram(manifest: Manifest, split: str) -> str:
    """A histogram on one line; the classes of NLI have their names."""
    names = {str(rank): name for rank, name in enumerate(NLI_CLASSES)} if manifest.label_kind == "nli" else {}
    counts = manifest.splits[split]["label_histogram"]
    return "  ".join(f"{names.get(label, label)}: {rows:,}" for label, rows in counts.items())


def table(manifest: Manifest) -> str:
    """Summary of a prepared corpus as text."""
    lines = [f"{manifest.name}: {manifest.label_kind} labels, {manifest.source}"]
    lines.append(f"{'split':<12}{'rows':>10}{'published':>12}  labels")
    for split, facts in manifest.splits.items():
        published = f"{facts['published_rows']:,}" if facts["published_rows"] else "-"
        lines.append(f"{split:<12}{facts['rows']:>10,}{published:>12}  {shown_histogram(manifest, split)}")
        if sum(file["rows"] for file in facts["source_files"]) not in (0, facts["rows"]):
            lines += [f"{'':<12}{file['rows']:>10,} rows of {file['name']}" for file in facts["source_files"]]
    lines += [f"{split:<12}{'absent':>10}" for split in manifest.absent_splits]
    return "\n".join(lines + [f"warning: {warning}" for warning in manifest.warnings])
