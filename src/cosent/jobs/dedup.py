"""Find near-duplicates in one's own file: groups of sentences that are similar to each other.

cosent dedup --model runs/faq --text questions.txt --output unique.txt
cosent dedup --model runs/faq --index vectors.npy --threshold 0.9

--output keeps the first sentence of every group, a sentence per line.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.cli import option
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import IndexArguments, OutputFile, open_model

EXAMPLES = 5  # of pairs that are kept apart
HELD_PAIRS = 10_000_000  # in memory before they are merged into groups


@dataclass(kw_only=True)
class DedupArguments(OutputFile):
    """When two sentences are the same, and what becomes of them."""

    threshold: float | None = option(
        None, "Least cosine of similar sentences; default: the one that training found on validation."
    )
    keep_apart: bool = option(
        True,
        "Keep sentences apart that differ in a number, unit, code or negation, or in what the model does not read.",
    )
    json: bool = option(False, "JSON lines instead of text.")


def main(index_args: IndexArguments, args: DedupArguments) -> None:
    check(index_args, args)  # before imports that take seconds
    resolve(index_args.model)
    from cosent.models.cache import growing_vectors
    from cosent.models.decision import needed_rule
    from cosent.search.index import open_index
    from cosent.search.vectors import open_vectors

    threshold = args.threshold
    if threshold is None:
        threshold = needed_rule(index_args.model, None, "Give --threshold, e.g. 0.9.").threshold
    encoder = open_model(index_args, bi_encoder=True)
    index = open_index(index_args.index, index_args.text, encoder, growing_vectors)
    inputs = list(index_args.text or [])
    if index_args.index is not None:
        inputs += [index_args.index, str(open_vectors(index_args.index).input)]
    if args.output is not None and Path(args.output).resolve() in {Path(path).resolve() for path in inputs}:
        raise InputError(f"--output {args.output} is an input. Name another file.")
    kept_apart = KeptApart(index.sentences, encoder) if args.keep_apart else None
    groups = linked_groups(all_pairs(index, threshold, kept_apart), len(index))
    if args.output is None:
        print_groups(index.sentences, groups, args.json)
    else:
        first = np.sort(np.unique(groups, return_index=True)[1])
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


def check(index_args: IndexArguments, args: DedupArguments) -> None:
    """Refuses arguments before a model is loaded."""
    index_args.refuse_best()
    args.refuse_existing()
    if args.threshold is not None and not -1 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: expected a cosine, from -1 to 1. Correct it, e.g. to 0.9.")
    if args.json and args.output is not None:
        raise InputError("--json prints what --output leaves out of its file. Give one of the two.")


class KeptApart:
    """Pairs above the threshold that differ in a fact, see `differences`: counted by reason, with the first few.

    Equal facts are an equivalence, so that no third sentence links two that differ. For the same reason, a sentence
    that the model cannot tell from another one is merged with none but copies of itself.
    """

    def __init__(self, sentences, encoder):
        from cosent.search.differences import colliding

        self.sentences, self.reasons, self.examples = sentences, Counter(), []
        self.colliding = colliding(encoder, sentences)

    def reason(self, first: int, second: int) -> str | None:
        """Why two sentences are kept apart, counted; None if they are not."""
        from cosent.search.differences import difference

        pair = self.sentences[first], self.sentences[second]
        reason = difference(*pair)
        if reason is None and self.colliding.get(first) != self.colliding.get(second):
            reason = "token collision"
        if reason is not None:
            self.reasons[reason] += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append(pair)
        return reason

    def report(self) -> None:
        """Says on stderr what was kept apart."""
        if self.reasons:
            counts = ", ".join(f"{count:,} by {reason}" for reason, count in self.reasons.most_common())
            examples = "; ".join(" / ".join(pair) for pair in self.examples)
            print(f"kept apart: {counts} ({examples}). --no_keep_apart merges them.", file=sys.stderr)


def all_pairs(index, threshold: float, kept_apart: KeptApart | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of all pairs above the threshold, without those that are kept apart; progress on stderr."""
    from tqdm.auto import tqdm

    from cosent.search.neighbours import pairs_above

    with tqdm(total=len(index), desc="Pairs", unit="sentence", file=sys.stderr) as progress:
        for first, second, _ in pairs_above(index.vectors, threshold):
            progress.update(int(first[0]) - progress.n)
            if kept_apart is not None:
                alike = [kept_apart.reason(*rows) is None for rows in zip(first, second, strict=True)]
                first, second = first[alike], second[alike]
            yield first, second
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
