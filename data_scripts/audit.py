"""Audit a prepared corpus: duplicates, leaks between splits, and the score of plain character overlap.

cosent audit lcqmc
cosent audit data/my_pairs --output audit.json
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from cosent.cli import REQUIRED, option, run
from cosent.data.manifest import COLUMNS, SPLITS, Manifest, corpus_folder
from cosent.errors import InputError
from data_scripts.description import histogram, read_columns, shown_histogram

PERCENTILES = (50, 90, 99, 100)

Pair = tuple[str, str, float]


@dataclass
class AuditArguments:
    """The corpus and the report."""

    corpus: str = option(REQUIRED, "Name of a folder below data/, or a prepared folder.", positional=True)
    output: str | None = option(None, "File for the report as JSON too.")


def main(arguments: AuditArguments) -> None:
    """Prints the report of a prepared corpus."""
    folder = corpus_folder(arguments.corpus, "data")
    if folder is None:
        raise InputError(
            f"There is no prepared corpus data/{arguments.corpus} or {arguments.corpus}. Run `cosent prepare "
            f"{arguments.corpus} --source RAW_FOLDER` first."
        )
    manifest = Manifest.load(folder)
    pairs = {split: read(folder / f"{split}.parquet") for split in SPLITS if split in manifest.splits}
    report = {
        "name": manifest.name,
        "splits": {split: describe(rows, manifest) for split, rows in pairs.items()},
        "leaks": {f"{a} -> {b}": leaks(pairs[a], pairs[b]) for a, b in combinations(pairs, 2)},
        "warnings": manifest.warnings,
    }
    print(table(report, manifest))
    if arguments.output:
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        Path(arguments.output).write_text(text, encoding="utf-8")


def read(path: Path) -> list[Pair]:
    return list(zip(*(column.to_pylist() for column in read_columns(path, *COLUMNS).columns), strict=True))


def labels_by_pair(pairs: list[Pair]) -> dict[frozenset[str], set[float]]:
    """Labels of each pair, in either order of its sentences."""
    labels = defaultdict(set)
    for sentence1, sentence2, label in pairs:
        labels[frozenset((sentence1, sentence2))].add(label)
    return labels


def describe(pairs: list[Pair], manifest: Manifest) -> dict:
    """Labels, lengths, the no-model baseline, rows beyond the first of each pair, and pairs with different labels."""
    import numpy as np

    lengths = [len(sentence) for pair in pairs for sentence in pair[:2]]
    percentiles = np.percentile(lengths, PERCENTILES).round().astype(int).tolist()
    labels = labels_by_pair(pairs)
    return {
        "rows": len(pairs),
        "label_histogram": histogram([pair[2] for pair in pairs], manifest.label_min, manifest.label_max),
        "characters": dict(zip(map(str, PERCENTILES), percentiles, strict=True)),
        "equal_sentences": sum(pair[0] == pair[1] for pair in pairs),
        "overlap_spearman": overlap_spearman(pairs),
        "repeated_ordered": len(pairs) - len({pair[:2] for pair in pairs}),
        "repeated_unordered": len(pairs) - len(labels),
        "conflicting_pairs": sum(len(some) > 1 for some in labels.values()),
    }


def leaks(seen: list[Pair], held_out: list[Pair]) -> dict:
    """Rows of `held_out` that occur in `seen`: the pair in either order, both its sentences, at least one of them.

    `pair_other_label` counts the leaked pairs that never have the same label in `seen`.
    """
    labels = labels_by_pair(seen)
    sentences = {sentence for pair in seen for sentence in pair[:2]}
    shared = [(pair[0] in sentences) + (pair[1] in sentences) for pair in held_out]
    leaked = [(labels[key], pair[2]) for pair in held_out if (key := frozenset(pair[:2])) in labels]
    return {
        "rows": len(held_out),
        "pair": len(leaked),
        "pair_other_label": sum(label not in some for some, label in leaked),
        "both_sentences": shared.count(2),
        "one_or_both_sentences": len(held_out) - shared.count(0),
    }


def overlap_spearman(pairs: list[Pair]) -> float | None:
    """Spearman x100 of the character overlap with the labels: a trained model must beat it. None if it is undefined."""
    import numpy as np

    from cosent.evaluation import similarity

    sentences1, sentences2, labels = map(list, zip(*pairs, strict=True))
    value = similarity.overlap_spearman(sentences1, sentences2, np.array(labels))
    return None if np.isnan(value) else round(100 * float(value), 2)


def table(report: dict, manifest: Manifest) -> str:
    """The report as text: one column per split, one line per pair of splits."""
    splits = report["splits"]
    lines = [report["name"], f"{'':<28}" + "".join(f"{split:>14}" for split in splits)]
    facts = [{name: value for name, value in one.items() if not isinstance(value, dict)} for one in splits.values()]
    for one, described in zip(facts, splits.values(), strict=True):
        one |= {f"characters, {percentile}%": count for percentile, count in described["characters"].items()}
    for fact in facts[0]:
        values = ("-" if one[fact] is None else f"{one[fact]:,}" for one in facts)
        lines.append(f"{fact:<28}" + "".join(f"{value:>14}" for value in values))
    for split, described in splits.items():
        lines.append(f"labels of {split:<18}{shown_histogram(described['label_histogram'], manifest)}")
    for couple, leak in report["leaks"].items():
        lines.append(
            f"leak {couple:<23}pair {leak['pair']:,} (label differs: {leak['pair_other_label']:,}), both sentences "
            f"{leak['both_sentences']:,}, one or both {leak['one_or_both_sentences']:,} of {leak['rows']:,} rows"
        )
    return "\n".join(lines + [f"warning: {warning}" for warning in report["warnings"]])


ARGUMENTS = (AuditArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
