"""Audit a prepared corpus: duplicates, leaks between splits, and the score of plain character overlap.

cosent audit lcqmc
cosent audit data/my_pairs --output audit.json
"""

import json
from collections import Counter
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.data.corpus import labels_of, load_corpus, reversed_labels, unknown_characters, unordered_pairs
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.similarity import overlap_spearman
from cosent.flags import REQUIRED, option

from .description import shown_histogram

PERCENTILES = (50, 90, 99, 100)


@dataclass
class AuditArguments:
    """Audit options."""

    corpus: str = option(REQUIRED, "Name of a folder below data/, or a prepared folder.", positional=True)
    model: str = option("similar", "Shipped model or folder whose tokenizer decides which characters are unknown.")
    output: str | None = option(None, "JSON file to write the report to.")


def main(arguments: AuditArguments) -> None:
    """Prints the report of a prepared corpus."""
    import pandas as pd

    corpus = load_corpus(arguments.corpus)
    manifest, tokenizer = corpus.manifest, tokenizer_of(arguments.model)
    texts = {split: [*rows["sentence1"], *rows["sentence2"]] for split, rows in corpus.splits.items()}
    splits = {split: describe(rows) for split, rows in corpus.splits.items()}
    for split, facts in splits.items():
        facts["unknown_characters, %"] = round(100 * unknown_characters(texts[split], tokenizer)[0], 4)
    unknown = unknown_characters(chain.from_iterable(texts.values()), tokenizer)[1]
    pairs = {
        split: list(zip(unordered_pairs(rows), rows["label"], strict=True)) for split, rows in corpus.splits.items()
    }
    leaked = {f"{a} -> {b}": leaks(pairs[a], pairs[b]) for a, b in combinations(pairs, 2)}
    facts = pd.DataFrame({split: pd.Series(values, dtype=object) for split, values in splits.items()})
    print(manifest.name, facts.map(lambda value: "-" if value is None else f"{value:,}").to_string(), sep="\n")
    for split in splits:
        print(f"labels of {split}: {shown_histogram(manifest, split)}")
    if leaked:
        print(f"rows that occur in another split\n{pd.DataFrame(leaked).T.to_string()}")
    if (question := reversed_labels(next(iter(corpus.splits.values())), manifest)) is not None:
        print(f"warning: {question}.")
    if unknown:
        print(f"unknown to {arguments.model}: {unknown}")
    for warning in manifest.warnings:
        print(f"warning: {warning}")
    if arguments.output:
        report = {"name": manifest.name, "splits": splits, "leaks": leaked, "warnings": manifest.warnings}
        write_atomically(arguments.output, json.dumps(report, ensure_ascii=False, indent=2) + "\n")


def tokenizer_of(model: str):
    """The `tokenizers.Tokenizer` of a shipped model or a folder."""
    from tokenizers import Tokenizer

    file = Path(resolve(model), "tokenizer.json")
    if not file.is_file():
        raise InputError(f"--model {model} has no tokenizer.json. Name the folder of a model that has one.")
    return Tokenizer.from_file(str(file))


def describe(rows) -> dict:
    """Lengths, the no-model baseline, rows beyond the first of each pair, and pairs with different labels."""
    sentences1, sentences2, labels = rows["sentence1"][:], rows["sentence2"][:], labels_of(rows)
    lengths = [len(text) for text in (*sentences1, *sentences2)]
    pairs = unordered_pairs(rows, str)
    labels_of_pair = Counter(pair for pair, _ in set(zip(pairs, labels.tolist(), strict=True)))
    overlap = 100 * overlap_spearman(sentences1, sentences2, labels)  # a trained model must beat it
    return {
        "rows": len(rows),
        **{f"characters, {part}%": round(float(np.percentile(lengths, part))) for part in PERCENTILES},
        "equal_sentences": sum(map(str.__eq__, sentences1, sentences2)),
        "overlap_spearman": None if np.isnan(overlap) else round(overlap, 2),
        "repeated_pairs": len(pairs) - len(labels_of_pair),
        "conflicting_pairs": sum(count > 1 for count in labels_of_pair.values()),
    }


def leaks(seen: list[tuple], held_out: list[tuple]) -> dict:
    """Rows of `held_out` that occur in `seen`: the pair in either order, both its sentences, at least one of them.

    Rows are `unordered_pairs` with their labels. `pair_other_label` counts the leaked pairs that never have the same
    label in `seen`.
    """
    labelled, pairs = set(seen), {pair for pair, _ in seen}
    sentences = {sentence for pair in pairs for sentence in pair}
    return {
        "rows": len(held_out),
        "pair": sum(pair in pairs for pair, _ in held_out),
        "pair_other_label": sum(row[0] in pairs and row not in labelled for row in held_out),
        "both_sentences": sum(sentences.issuperset(pair) for pair, _ in held_out),
        "one_or_both_sentences": sum(not sentences.isdisjoint(pair) for pair, _ in held_out),
    }
