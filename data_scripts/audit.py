"""Audit a prepared corpus: duplicates, leaks between splits, and the score of plain character overlap.

cosent audit lcqmc
cosent audit data/my_pairs --output audit.json
"""

import json
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

from cosent.atomic import write_atomically
from cosent.data.manifest import Manifest, existing_corpus
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option

from .description import dataset_of, in_pairs_of, keyed, read_splits, shown_histogram

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

    from cosent.data.corpus import reversed_labels

    folder = existing_corpus(arguments.corpus, "data")
    manifest, rows = Manifest.load(folder), read_splits(folder)
    splits = {split: describe(with_pairs(some)) for split, some in rows.items()}
    unknown = add_unknown_characters(splits, rows, arguments.model)
    keys = {split: with_pairs(keyed(some)) for split, some in rows.items()}
    leaked = {f"{a} -> {b}": leaks(keys[a], keys[b]) for a, b in combinations(keys, 2)}
    facts = pd.DataFrame({split: pd.Series(some, dtype=object) for split, some in splits.items()})
    print(manifest.name, facts.map(lambda value: "-" if value is None else f"{value:,}").to_string(), sep="\n")
    for split in splits:
        print(f"labels of {split}: {shown_histogram(manifest, split)}")
    if leaked:
        print(f"rows that occur in another split\n{pd.DataFrame(leaked).T.to_string()}")
    if (question := reversed_labels(dataset_of(folder, next(iter(splits))), manifest)) is not None:
        print(f"warning: {question}.")
    if unknown:
        print(f"unknown to {arguments.model}: {unknown}")
    for warning in manifest.warnings:
        print(f"warning: {warning}")
    if arguments.output:
        report = {"name": manifest.name, "splits": splits, "leaks": leaked, "warnings": manifest.warnings}
        write_atomically(arguments.output, json.dumps(report, ensure_ascii=False, indent=2) + "\n")


def add_unknown_characters(splits: dict[str, dict], rows: dict, model: str) -> str:
    """Adds the share of characters unknown to a model to the facts of each split; returns the most frequent."""
    from tokenizers import Tokenizer

    from cosent.data.corpus import unknown_characters

    file = Path(resolve(model), "tokenizer.json")
    if not file.is_file():
        raise InputError(f"--model {model} has no tokenizer.json. Name the folder of a model that has one.")
    tokenizer = Tokenizer.from_file(str(file))
    texts = {split: [*some["sentence1"], *some["sentence2"]] for split, some in rows.items()}
    for split, some in texts.items():
        splits[split]["unknown_characters, %"] = round(100 * unknown_characters(some, tokenizer)[0], 4)
    return unknown_characters(chain.from_iterable(texts.values()), tokenizer)[1]


def with_pairs(rows):
    """Rows with a column `pair`, equal for the same two sentences in either order."""
    first, second = rows["sentence1"], rows["sentence2"]
    ordered = first <= second
    low, high = first.where(ordered, second), second.where(ordered, first)
    return rows.assign(pair=low.str.len().astype(str) + " " + low + high)


def describe(rows) -> dict:
    """Lengths, the no-model baseline, rows beyond the first of each pair, and pairs with different labels."""
    import pandas as pd

    lengths = pd.concat([rows["sentence1"], rows["sentence2"]]).str.len()
    return {
        "rows": len(rows),
        **{f"characters, {part}%": round(float(lengths.quantile(part / 100))) for part in PERCENTILES},
        "equal_sentences": int((rows["sentence1"] == rows["sentence2"]).sum()),
        "overlap_spearman": overlap_spearman(rows),
        "repeated_pairs": int(rows["pair"].duplicated().sum()),
        "conflicting_pairs": int((rows.groupby("pair")["label"].nunique() > 1).sum()),
    }


def leaks(seen, held_out) -> dict:
    """Rows of `held_out` that occur in `seen`: the pair in either order, both its sentences, at least one of them.

    Both come from `with_pairs` and `keyed`, so that a sentence also occurs where its case, width or end differs.
    `pair_other_label` counts the leaked pairs that never have the same label in `seen`.
    """
    import pandas as pd

    shared = in_pairs_of(seen, held_out)
    leaked = held_out[held_out["pair"].isin(seen["pair"])]
    labelled = [pd.MultiIndex.from_frame(some[["pair", "label"]]) for some in (leaked, seen)]
    return {
        "rows": len(held_out),
        "pair": len(leaked),
        "pair_other_label": int((~labelled[0].isin(labelled[1])).sum()),
        "both_sentences": int(shared.all(axis=1).sum()),
        "one_or_both_sentences": int(shared.any(axis=1).sum()),
    }


def overlap_spearman(rows) -> float | None:
    """Spearman x100 of the character overlap with the labels: a trained model must beat it. None if it is undefined."""
    import numpy as np

    from cosent.evaluation import similarity

    value = similarity.overlap_spearman(rows["sentence1"], rows["sentence2"], rows["label"].to_numpy())
    return None if np.isnan(value) else round(100 * float(value), 2)
