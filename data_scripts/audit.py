"""Audit a prepared corpus: duplicates, leaks between splits, and the score of plain character overlap.

cosent audit lcqmc
cosent audit data/my_pairs --output audit.json
"""

import json
import unicodedata
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from cosent.cli import REQUIRED, option, run
from cosent.data.manifest import COLUMNS, SPLITS, Manifest
from cosent.errors import InputError
from data_scripts.description import histogram, shown_histogram

PERCENTILES = (50, 90, 99, 100)
PLACEHOLDER = "NS"  # stands for a missing translation in PAWS-X (google-research-datasets/paws#15)

Pair = tuple[str, str, float]


@dataclass
class AuditArguments:
    """The corpus and the report."""

    corpus: str = option(REQUIRED, "Name of a folder below data/, or a prepared folder.", positional=True)
    output: str | None = option(None, "File for the report as JSON too.")


def main(arguments: AuditArguments) -> None:
    """Prints the report of a prepared corpus.

    Raises:
        InputError: there is no such prepared corpus.
    """
    below_data = Path("data", arguments.corpus)
    folder = below_data if below_data.is_dir() else Path(arguments.corpus)
    if not folder.is_dir():
        raise InputError(
            f"Expected a prepared corpus at data/{arguments.corpus} or {arguments.corpus}, got no such folder. "
            f"Run `cosent prepare {arguments.corpus} --source RAW_FOLDER` first."
        )
    manifest = Manifest.load(folder)
    pairs = {split: read(folder / f"{split}.parquet") for split in SPLITS if split in manifest.splits}
    report = {
        "name": manifest.name,
        "splits": {split: {**describe(rows, manifest), **duplicates(rows)} for split, rows in pairs.items()},
        "leaks": {f"{a} -> {b}": leaks(pairs[a], pairs[b]) for a, b in combinations(pairs, 2)},
        "warnings": manifest.warnings,
    }
    print(table(report, manifest))
    if arguments.output:
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        Path(arguments.output).write_text(text, encoding="utf-8")


def read(path: Path) -> list[Pair]:
    import pyarrow.parquet

    columns = pyarrow.parquet.read_table(path, columns=list(COLUMNS))
    return list(zip(*(columns[name].to_pylist() for name in COLUMNS), strict=True))


def unordered(pair: Pair) -> tuple[str, str]:
    return (pair[0], pair[1]) if pair[0] <= pair[1] else (pair[1], pair[0])


def duplicates(pairs: list[Pair]) -> dict:
    """Rows beyond the first of each pair, and pairs whose rows disagree about the label."""
    labels = defaultdict(set)
    for pair in pairs:
        labels[unordered(pair)].add(pair[2])
    return {
        "repeated_ordered": len(pairs) - len({pair[:2] for pair in pairs}),
        "repeated_unordered": len(pairs) - len(labels),
        "conflicting_pairs": sum(len(found) > 1 for found in labels.values()),
    }


def leaks(seen: list[Pair], held_out: list[Pair]) -> dict:
    """Rows of `held_out` that occur in `seen`: the pair in either order, both its sentences, at least one of them.

    `pair_other_label` counts the leaked pairs that never have the same label in `seen`.
    """
    labels = defaultdict(set)
    for pair in seen:
        labels[unordered(pair)].add(pair[2])
    sentences = {sentence for pair in seen for sentence in pair[:2]}
    known = [(pair[0] in sentences) + (pair[1] in sentences) for pair in held_out]
    whole = [pair for pair in held_out if unordered(pair) in labels]
    return {
        "rows": len(held_out),
        "pair": len(whole),
        "pair_other_label": sum(pair[2] not in labels[unordered(pair)] for pair in whole),
        "both_sentences": sum(count == 2 for count in known),
        "one_or_both_sentences": sum(count > 0 for count in known),
    }


def is_placeholder(sentence: str) -> bool:
    """`NS`, or no letter, digit or Chinese character at all."""
    return sentence == PLACEHOLDER or not any(unicodedata.category(character)[0] in "LN" for character in sentence)


def describe(pairs: list[Pair], manifest: Manifest) -> dict:
    import numpy as np

    lengths = [len(sentence) for pair in pairs for sentence in pair[:2]]
    found = [is_placeholder(pair[0]) + is_placeholder(pair[1]) for pair in pairs]
    percentiles = np.percentile(lengths, PERCENTILES).round().astype(int).tolist()
    return {
        "rows": len(pairs),
        "label_histogram": histogram([pair[2] for pair in pairs], manifest.label_min, manifest.label_max),
        "characters": dict(zip(map(str, PERCENTILES), percentiles, strict=True)),
        "equal_sentences": sum(pair[0] == pair[1] for pair in pairs),
        "placeholder_one_sentence": sum(count == 1 for count in found),
        "placeholder_both_sentences": sum(count == 2 for count in found),
        "overlap_spearman": overlap_spearman(pairs),
    }


def dice_overlap(sentence1: str, sentence2: str) -> float:
    """Dice overlap `2 * |a & b| / (|a| + |b|)` of a, b: multisets of characters and character bigrams of a sentence.

    Case, spaces and punctuation count as they are. Two empty sentences have overlap 0.
    """
    grams1, grams2 = (Counter([*s, *map("".join, zip(s, s[1:], strict=False))]) for s in (sentence1, sentence2))
    total = grams1.total() + grams2.total()
    shared = sum(min(count, grams2[gram]) for gram, count in grams1.items() if gram in grams2)
    return 2 * shared / total if total else 0.0


def overlap_spearman(pairs: list[Pair]) -> float | None:
    """Spearman x100 of the overlap with the labels: a trained model must beat it. None if all labels are equal."""
    from scipy.stats import spearmanr

    labels = [pair[2] for pair in pairs]
    overlaps = [dice_overlap(*pair[:2]) for pair in pairs]
    if len(set(labels)) < 2 or len(set(overlaps)) < 2:
        return None
    return round(100 * float(spearmanr(overlaps, labels).statistic), 2)


def table(report: dict, manifest: Manifest) -> str:
    """The report as text: one column per split, one line per pair of splits."""
    splits = report["splits"]
    lines = [report["name"], f"{'':<28}" + "".join(f"{split:>14}" for split in splits)]
    first = next(iter(splits.values()))
    for fact in (name for name in first if name not in ("label_histogram", "characters")):
        values = ("-" if facts[fact] is None else f"{facts[fact]:,}" for facts in splits.values())
        lines.append(f"{fact:<28}" + "".join(f"{value:>14}" for value in values))
    for percentile in map(str, PERCENTILES):
        name = "characters, longest" if percentile == "100" else f"characters, {percentile}%"
        lines.append(f"{name:<28}" + "".join(f"{facts['characters'][percentile]:>14,}" for facts in splits.values()))
    for split, facts in splits.items():
        lines.append(f"labels of {split:<18}{shown_histogram(facts['label_histogram'], manifest)}")
    for couple, leak in report["leaks"].items():
        lines.append(
            f"leak {couple:<23}pair {leak['pair']:,} (label differs: {leak['pair_other_label']:,}), both sentences "
            f"{leak['both_sentences']:,}, one or both {leak['one_or_both_sentences']:,} of {leak['rows']:,} rows"
        )
    return "\n".join(lines + [f"warning: {warning}" for warning in report["warnings"]])


ARGUMENTS = (AuditArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
