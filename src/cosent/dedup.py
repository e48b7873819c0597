"""Find near-duplicates in one's own file: groups of sentences, or pairs, that are similar to each other.

cosent dedup --model runs/faq --text questions.txt --output unique.txt
cosent dedup --model runs/faq --index vectors.npy --threshold 0.9 --pairs
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.cli import option, run
from cosent.encoders import resolve
from cosent.errors import InputError, write_atomically, writing
from cosent.inference.index import IndexArguments

MOST_PAIRS = 50_000_000  # sorted in memory


@dataclass
class DedupArguments:
    """When two sentences are the same, and what becomes of them."""

    threshold: float | None = option(
        None, "Least cosine of similar sentences; default: the one that training found on validation."
    )
    pairs: bool = option(False, "Print pairs, most similar first, instead of groups.")
    min_cluster_size: int | None = option(
        None, "Instead of a threshold: groups of at least so many sentences that HDBSCAN finds."
    )
    output: str | None = option(None, "File to write: the sentences, of each group only the first.")
    json: bool = option(False, "A JSON object per group or pair.")
    overwrite: bool = option(False, "Replace the output if it exists.")


def main(index_args: IndexArguments, args: DedupArguments) -> None:
    check(args, [] if args.output is None else inputs_of(index_args))  # before imports that take seconds
    resolve(index_args.model)
    from cosent.inference.index import dense_clusters, open_index

    threshold = threshold_of(index_args.model, args.threshold) if args.min_cluster_size is None else None
    index = open_index(index_args)
    if args.pairs:
        print_pairs(index, threshold, args.json)
        return
    if threshold is None:
        groups, how = dense_clusters(index.vectors, args.min_cluster_size), "HDBSCAN"
    else:
        groups, how = linked(index, threshold), f"a cosine of at least {threshold:.4f}"
    if args.output is None:
        print_groups(index.sentences, groups, args.json)
    else:
        _, first = np.unique(groups, return_index=True)
        with writing(args.output):
            kept = (re.sub(r"[\r\n]+", " ", index.sentences[row]) for row in np.sort(first))
            write_atomically(args.output, "".join(f"{sentence}\n" for sentence in kept))
        print(json.dumps({"output": args.output, "sentences": len(groups), "kept": len(first)}))
    size = np.bincount(groups)
    print(f"{len(groups):,} sentences: {len(size):,} groups by {how}, {(size > 1).sum():,} of several sentences",
          file=sys.stderr)  # fmt: skip


def inputs_of(index_args: IndexArguments) -> list[Path]:
    """The files that the sentences are read from; of an index, its vectors and what was encoded."""
    if index_args.index is None:
        return [Path(path) for path in index_args.text or []]
    from cosent.inference.vectors import open_vectors, source_of

    vectors = open_vectors(index_args.index)
    return [*vectors.files, *map(source_of, vectors.files, vectors.manifests)]


def check(args: DedupArguments, inputs: list[Path]) -> None:
    """Refuses arguments before a model is loaded.

    Raises:
        InputError: an output that exists or is an input, a threshold that is no cosine, or flags that do not go
            together.
    """
    if args.output is not None and Path(args.output).resolve() in {path.resolve() for path in inputs}:
        raise InputError(f"--output {args.output} is an input: its other rows and columns would be lost. Name another.")
    if args.output is not None and Path(args.output).exists() and not args.overwrite:
        raise InputError(f"--output {args.output} exists, and nothing was written. Name another, or pass --overwrite.")
    if args.threshold is not None and not -1 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: expected a cosine, from -1 to 1. Correct it, e.g. to 0.9.")
    if args.json and args.output is not None:
        raise InputError("--json prints what --output leaves out of its file. Give one of the two.")
    if args.pairs and (args.output is not None or args.min_cluster_size is not None):
        raise InputError("--pairs prints pairs above a threshold: leave --output and --min_cluster_size out.")
    if args.min_cluster_size is not None and (args.threshold is not None or args.min_cluster_size < 2):
        raise InputError(
            f"--min_cluster_size {args.min_cluster_size} is for groups of at least 2 that HDBSCAN finds without a "
            "threshold. Raise it, or leave it or --threshold out."
        )


def threshold_of(model: str, given: float | None) -> float:
    """The threshold as given, or the one of the model.

    Raises:
        InputError: the model has none, or several.
    """
    if given is not None:
        return given
    from cosent.run_record import decision_rules

    rules = decision_rules(model)
    if len(rules) != 1:
        known = ", ".join(f"{rule.threshold:.4f} ({name})" for name, rule in rules.items())
        raise InputError(
            f"{model} has {known or 'no threshold, since it was not trained here on labels of 0 and 1'}: which "
            "sentences are similar is not known. Give --threshold, e.g. 0.9, and look at --pairs."
        )
    return next(iter(rules.values())).threshold


def all_pairs(index, threshold: float):
    """`pairs_above` of an index, with its progress on stderr."""
    from tqdm.auto import tqdm

    from cosent.inference.neighbours import pairs_above

    with tqdm(total=len(index), desc="Pairs", unit="sentence", file=sys.stderr) as progress:
        for first, second, scores in pairs_above(index.vectors, threshold):
            progress.update(int(first[0]) - progress.n)
            yield first, second, scores
        progress.update(len(index) - progress.n)


def linked(index, threshold: float) -> np.ndarray:
    """Groups of sentences that pairs above the threshold link."""
    from cosent.inference.index import components

    return components(((first, second) for first, second, _ in all_pairs(index, threshold)), len(index))


def print_pairs(index, threshold: float, as_json: bool) -> None:
    """Prints `cosine row row sentence | sentence`, or JSON, most similar first.

    Raises:
        InputError: too many pairs.
    """
    found, count = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))], 0
    for block in all_pairs(index, threshold):
        found.append(block)
        count += len(block[0])
        if count > MOST_PAIRS:
            raise InputError(f"More than {MOST_PAIRS:,} pairs have a cosine of {threshold}. Raise --threshold.")
    first, second, scores = (np.concatenate(column) for column in zip(*found, strict=True))
    for place in np.argsort(-scores, kind="stable"):
        one, other = int(first[place]), int(second[place])
        sentences = [index.sentences[one], index.sentences[other]]
        if as_json:
            found_pair = {"cosine": round(float(scores[place]), 6), "rows": [one, other], "sentences": sentences}
            print(json.dumps(found_pair, ensure_ascii=False))
        else:
            print(f"{scores[place]:7.4f}  {one:>8}  {other:>8}  {sentences[0]}  |  {sentences[1]}")
    print(f"{len(index):,} sentences: {len(first):,} pairs with a cosine of at least {threshold:.4f}", file=sys.stderr)


def print_groups(sentences, groups: np.ndarray, as_json: bool) -> None:
    """Prints the groups of several sentences, largest first: their rows and sentences, or JSON of them."""
    order = np.argsort(groups, kind="stable")
    ends = np.bincount(groups).cumsum()
    members = np.split(order, ends[:-1])
    several = sorted((rows for rows in members if len(rows) > 1), key=lambda rows: -len(rows))
    for number, rows in enumerate(several, start=1):
        if as_json:
            group = {"rows": rows.tolist(), "sentences": [sentences[row] for row in rows]}
            print(json.dumps(group, ensure_ascii=False))
            continue
        print(f"group {number}: {len(rows)} sentences")
        for row in rows:
            print(f"{row:>8}  {sentences[row]}")


ARGUMENTS = (IndexArguments, DedupArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
