"""Find near-duplicates in one's own file: groups of sentences, or pairs, that are similar to each other.

cosent dedup --model runs/faq --text questions.txt --output unique.txt
cosent dedup --model runs/faq --index vectors.npy --threshold 0.9 --pairs
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.cli import option, run
from cosent.encoders import resolve
from cosent.errors import InputError, write_atomically, writing
from cosent.inference.arguments import IndexArguments

EXAMPLES = 5  # of pairs that are kept apart
HELD_PAIRS = 10_000_000  # in memory before they are merged into groups
MOST_PAIRS = 50_000_000  # sorted in memory


@dataclass
class DedupArguments:
    """When two sentences are the same, and what becomes of them."""

    threshold: float | None = option(
        None, "Least cosine of similar sentences; default: the one that training found on validation."
    )
    keep_apart: bool = option(True, "Keep sentences apart that differ in a number, unit, Latin code or negation.")
    pairs: bool = option(False, "Print pairs, most similar first, instead of groups.")
    output: str | None = option(None, "File to write: the sentences, of each group only the first.")
    json: bool = option(False, "A JSON object per group or pair.")
    overwrite: bool = option(False, "Replace the output if it exists.")


def main(index_args: IndexArguments, args: DedupArguments) -> None:
    check(args)  # before imports that take seconds
    if index_args.long_texts == "best":
        raise InputError("--long_texts best keeps several vectors of a text. Give mean or truncate.")
    resolve(index_args.model)
    from cosent.compute.onednn import choose_device
    from cosent.inference.index import open_index
    from cosent.models.auto import load_bi_encoder
    from cosent.models.teacher import growing_vectors

    threshold = threshold_of(index_args.model, args.threshold)
    encoder = load_bi_encoder(index_args.model, index_args.long_texts).to(choose_device(index_args.device))
    index = open_index(index_args, encoder, growing_vectors)
    inputs = index_args.text or [*index.vectors.files, *index.vectors.inputs]
    if args.output is not None and Path(args.output).resolve() in {Path(path).resolve() for path in inputs}:
        raise InputError(f"--output {args.output} is an input. Name another file.")
    kept_apart = KeptApart(index.sentences) if args.keep_apart else None
    if args.pairs:
        print_pairs(index, threshold, args.json, kept_apart)
        return
    groups = linked_groups((pair[:2] for pair in all_pairs(index, threshold, kept_apart)), len(index))
    if args.output is None:
        print_groups(index.sentences, groups, args.json)
    else:
        first = np.sort(np.unique(groups, return_index=True)[1])
        with writing(args.output):
            lines = (re.sub(r"[\r\n]+", " ", index.sentences[row]) + "\n" for row in first)
            write_atomically(args.output, "".join(lines))
        print(json.dumps({"output": args.output, "sentences": len(groups), "kept": len(first)}))
    size = np.bincount(groups)
    print(
        f"{len(groups):,} sentences: {len(size):,} groups by a cosine of at least {threshold:.4f}, "
        f"{(size > 1).sum():,} of several sentences",
        file=sys.stderr,
    )
    if kept_apart is not None:
        kept_apart.report()


def check(args: DedupArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if args.output is not None and Path(args.output).exists() and not args.overwrite:
        raise InputError(f"--output {args.output} exists, and nothing was written. Name another, or pass --overwrite.")
    if args.threshold is not None and not -1 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: expected a cosine, from -1 to 1. Correct it, e.g. to 0.9.")
    if args.json and args.output is not None:
        raise InputError("--json prints what --output leaves out of its file. Give one of the two.")
    if args.pairs and args.output is not None:
        raise InputError("--pairs prints, and --output writes the first sentence of each group. Give one of the two.")


def threshold_of(model: str, threshold: float | None) -> float:
    """The threshold as given, or the one of the model."""
    if threshold is not None:
        return threshold
    from cosent.run import choose_rule, decision_rules

    rules = decision_rules(model)
    if (rule := choose_rule(rules, None, model)) is None:
        names = ", ".join(f"{rule.threshold:.4f} ({name})" for name, rule in rules.items())
        raise InputError(
            f"{model} has {names or 'no threshold, since it was not trained here on labels of 0 and 1'}. Give "
            "--threshold, e.g. 0.9, and look at --pairs."
        )
    return rule.threshold


class KeptApart:
    """Pairs above the threshold that differ in a fact, see `differences`: counted by reason, with the first few.

    Equal facts are an equivalence, so that no third sentence links two that differ.
    """

    def __init__(self, sentences):
        self.sentences, self.reasons, self.examples = sentences, Counter(), []

    def reason(self, first: int, second: int) -> str | None:
        """Why two sentences are kept apart, counted; None if they are not."""
        from cosent.inference.differences import difference

        pair = self.sentences[first], self.sentences[second]
        reason = difference(*pair)
        if reason is not None:
            self.reasons[reason] += 1
            self.examples += [pair] * (len(self.examples) < EXAMPLES)
        return reason

    def report(self) -> None:
        """Says on stderr what was kept apart."""
        if self.reasons:
            counts = ", ".join(f"{count:,} by {reason}" for reason, count in self.reasons.most_common())
            examples = "; ".join(" / ".join(pair) for pair in self.examples)
            print(
                f"kept apart: {counts} ({examples}). --pairs lists all; --no_keep_apart merges them.", file=sys.stderr
            )


def all_pairs(
    index, threshold: float, kept_apart: KeptApart | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """`pairs_above` of an index without those that are kept apart, with its progress on stderr."""
    from tqdm.auto import tqdm

    from cosent.inference.neighbours import pairs_above

    with tqdm(total=len(index), desc="Pairs", unit="sentence", file=sys.stderr) as progress:
        for first, second, scores in pairs_above(index.vectors, threshold):
            progress.update(int(first[0]) - progress.n)
            if kept_apart is not None:
                alike = [kept_apart.reason(*rows) is None for rows in zip(first, second, strict=True)]
                first, second, scores = first[alike], second[alike], scores[alike]
            yield first, second, scores
        progress.update(len(index) - progress.n)


def linked_groups(pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> np.ndarray:
    """Number of the group of each row, shape `(rows,)`: rows are in one group if pairs link them, also through others.

    Groups are numbered by their first row.
    """
    from cosent.data.groups import components

    def merge() -> np.ndarray:
        first, second = (groups[np.concatenate(side)] for side in zip(*held, strict=True))
        return components(first, second, rows)[groups]

    groups, held, count = np.arange(rows), [(np.arange(0), np.arange(0))], 0
    for pair in pairs:
        held.append(pair)
        count += len(pair[0])
        if count > HELD_PAIRS:
            groups, held, count = merge(), held[:1], 0
    return merge()


def print_pairs(index, threshold: float, as_json: bool, kept_apart: KeptApart | None) -> None:
    """Prints `cosine row row sentence | sentence`, and why a pair is kept apart, or JSON; most similar first."""
    blocks, count = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))], 0
    for block in all_pairs(index, threshold):
        blocks.append(block)
        count += len(block[0])
        if count > MOST_PAIRS:
            raise InputError(f"More than {MOST_PAIRS:,} pairs have a cosine of {threshold}. Raise --threshold.")
    first, second, scores = (np.concatenate(column) for column in zip(*blocks, strict=True))
    for place in np.argsort(-scores, kind="stable"):
        rows = [int(first[place]), int(second[place])]
        one, other = (index.sentences[row] for row in rows)
        reason = None if kept_apart is None else kept_apart.reason(*rows)
        if as_json:
            pair = {"cosine": round(float(scores[place]), 6), "rows": rows, "sentences": [one, other]}
            print(json.dumps(pair | {"kept_apart": reason}, ensure_ascii=False))
        else:
            note = "" if reason is None else f"  (kept apart: {reason})"
            print(f"{scores[place]:7.4f}  {rows[0]:>8}  {rows[1]:>8}  {one}  |  {other}{note}")
    print(f"{len(index):,} sentences: {len(first):,} pairs with a cosine of at least {threshold:.4f}", file=sys.stderr)


def print_groups(sentences, groups: np.ndarray, as_json: bool) -> None:
    """Prints the groups of several sentences, largest first: their rows and sentences, or JSON of them."""
    members = np.split(np.argsort(groups, kind="stable"), np.bincount(groups).cumsum()[:-1])
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
