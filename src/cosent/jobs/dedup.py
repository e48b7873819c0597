"""Find near-duplicates in a file: groups of sentences that are similar to each other.

cosent dedup --model runs/faq --text questions.txt --output unique.txt
cosent dedup --model runs/faq --index vectors.npy --threshold 0.9

Every sentence of a group lies within the threshold of its first one. --output keeps these: a sentence per line, or in a
table (csv, xlsx, ...) with the other columns of their rows.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.cli import option
from cosent.data.formats import format_of
from cosent.data.writers import WRITERS, table_writer
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import IndexArguments, OutputFile, open_model

EXAMPLES = 5  # of pairs that are kept apart
LARGEST_COUNT, LARGEST_SHARE = 10, 0.01  # of a group that is not warned of: sentences, and share of the file


@dataclass(kw_only=True)
class DedupArguments(OutputFile):
    """Deduplication options."""

    threshold: float | None = option(
        None,
        "Lowest cosine with the first sentence of a group; default: the lowest at which 9 of 10 pairs are similar, by "
        "the model's validation pairs, if 1 of 10 close pairs is.",
    )
    corpus: str | None = option(None, "Corpus whose threshold to use; default: the one for all of training.")
    keep_apart: bool = option(
        True,
        "Do not merge sentences that differ in a number, unit, code, negation or character unknown to the model.",
    )
    json: bool = option(False, "Print JSON lines instead of text.")


def main(index_args: IndexArguments, args: DedupArguments) -> None:
    check_arguments(index_args, args)  # before imports that take seconds
    resolve(index_args.model)
    from cosent.models.cache import growing_vectors
    from cosent.models.decision import choose_rule, decision_rules, needed_rule
    from cosent.search.index import open_index
    from cosent.search.vectors import open_vectors

    threshold, similar = args.threshold, None
    if threshold is None:
        needed = needed_rule(index_args.model, args.corpus, "Give --threshold, e.g. 0.97.")
        threshold, similar = needed.merge_threshold, needed.threshold
        index_args.warn_of_threshold()
    elif rule := choose_rule(decision_rules(index_args.model), args.corpus, index_args.model):
        similar = rule.threshold
    if threshold is None:
        raise InputError(
            f"{index_args.model}: on validation no cosine tells duplicates from other close pairs well enough to merge "
            "them. Give --threshold, e.g. 0.97, and look at the groups first."
        )
    encoder = open_model(index_args, bi_encoder=True)
    index = open_index(
        index_args.index, index_args.text, encoder, growing_vectors, index_args.text_column, index_args.options
    )
    inputs = list(index_args.text or [])
    if index_args.index is not None:
        inputs += [index_args.index, str(open_vectors(index_args.index).input)]
    if args.output is not None and Path(args.output).resolve() in {Path(path).resolve() for path in inputs}:
        raise InputError(f"--output {args.output} is an input. Name another file.")
    kept_apart = KeptApart(index.sentences, encoder) if args.keep_apart else None
    owner, cosine = grouped(index, threshold, kept_apart)
    groups = groups_of_several(owner)
    if args.output is None:
        print_groups(index, groups, args.json)
    else:
        first = np.unique(owner)
        write_kept(args.output, index, first)
        print(json.dumps({"output": args.output, "sentences": len(owner), "kept": len(first)}))
    report(index.sentences, groups, owner, cosine, threshold, similar)
    if kept_apart is not None:
        kept_apart.report()


def check_arguments(index_args: IndexArguments, args: DedupArguments) -> None:
    """Refuses arguments before a model is loaded."""
    index_args.refuse_best()
    args.refuse_existing()
    if args.threshold is not None and not -1 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: expected a cosine, from -1 to 1. Correct it, e.g. to 0.9.")
    if args.json and args.output is not None:
        raise InputError("--json prints groups, and --output writes the first sentence of each. Give one of the two.")


class KeptApart:
    """Pairs above the threshold that are not merged: counts by reason, with examples.

    They differ in a fact, see `differences`; or the model cannot tell one of them from a third sentence, so that its
    cosine says nothing: such a sentence is merged with none but copies of itself.
    """

    def __init__(self, sentences, encoder):
        from cosent.search.differences import colliding

        self.sentences, self.reasons, self.examples = sentences, Counter(), []
        self.colliding = colliding(encoder, sentences)

    def __call__(self, first: int, second: int) -> bool:
        """Whether two sentences are kept apart; counts the reason."""
        from cosent.search.differences import difference

        pair = self.sentences[first], self.sentences[second]
        reason = difference(*pair)
        if reason is None and self.colliding.get(first) != self.colliding.get(second):
            reason = "token collision"
        if reason is not None:
            self.reasons[reason] += 1
            if len(self.examples) < EXAMPLES:
                self.examples.append(pair)
        return reason is not None

    def report(self) -> None:
        """Prints the pairs that were kept apart to stderr."""
        if self.reasons:
            counts = ", ".join(f"{count:,} by {reason}" for reason, count in self.reasons.most_common())
            examples = "; ".join(" / ".join(pair) for pair in self.examples)
            print(f"kept apart: {counts} ({examples}). --no_keep_apart merges them.", file=sys.stderr)


def grouped(index, threshold: float, kept_apart: KeptApart | None) -> tuple[np.ndarray, np.ndarray]:
    """The `representatives` of all rows and their cosines with them, each of shape `(rows,)`; progress on stderr."""
    from tqdm.auto import tqdm

    from cosent.search.neighbours import representatives

    apart = (lambda *pair: False) if kept_apart is None else kept_apart
    owner, cosine = np.arange(len(index)), np.ones(len(index), np.float32)
    with tqdm(total=len(index), desc="Sentences", unit="sentence", file=sys.stderr) as progress:
        for start, *columns in representatives(index.vectors, threshold, apart):
            rows = slice(start, start + len(columns[0]))
            owner[rows], cosine[rows] = columns
            progress.update(len(columns[0]))
    return owner, cosine


def groups_of_several(owner: np.ndarray) -> list[np.ndarray]:
    """Rows of each group of several sentences, in order; the largest group first."""
    _, members, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(members, kind="stable"), sizes.cumsum()[:-1])
    return sorted((rows for rows in groups if len(rows) > 1), key=lambda rows: -len(rows))


def write_kept(output: str, index, rows: np.ndarray) -> None:
    """Writes rows: a sentence per line, or where the name ends as a table, with their other columns."""
    if format_of(output) in WRITERS:
        kept = [index.columns[row] if len(index.columns) else {"text": index.sentences[row]} for row in rows]
        with table_writer(output, list(dict.fromkeys(name for row in kept for name in row))) as write:
            return write(kept)
    lines = (re.sub(r"[\r\n]+", " ", index.sentences[row]) + "\n" for row in rows)
    write_atomically(output, "".join(lines))


def print_groups(index, groups: list[np.ndarray], as_json: bool) -> None:
    """Prints the groups of several sentences, largest first: their rows and sentences, or JSON of them."""
    if groups and not as_json:
        print("     row  sentence")
    for number, rows in enumerate(groups, start=1):
        if as_json:
            group = {"rows": rows.tolist(), "sentences": [index.sentences[row] for row in rows]}
            if len(index.columns):
                group["columns"] = [index.columns[row] for row in rows]
            print(json.dumps(group, ensure_ascii=False, default=str))
            continue
        print(f"group {number}: {len(rows)} sentences")
        for row in rows:
            print(f"{row:>8}  {index.sentences[row]}")


def report(
    sentences,
    groups: list[np.ndarray],
    owner: np.ndarray,
    cosine: np.ndarray,
    threshold: float,
    similar: float | None,
) -> None:
    """Prints number of groups and the largest one to stderr, with a warning if it looks wrong.

    Args:
        similar: threshold of the verdict "similar" of the model, if it has one.
    """
    alone = len(owner) - sum(map(len, groups))
    print(
        f"{len(owner):,} sentences: {alone + len(groups):,} groups by a cosine of at least {threshold:.4f} with their "
        f"first sentence, {len(groups):,} of several sentences",
        file=sys.stderr,
    )
    if not groups:
        return
    farthest = groups[0][cosine[groups[0]].argmin()]
    pair = f"{sentences[owner[farthest]]} / {sentences[farthest]}"
    print(f"largest group: {len(groups[0])} sentences, farthest {cosine[farthest]:.4f}: {pair}", file=sys.stderr)
    if similar is not None and threshold < similar:
        print(
            f"warning: sentences of a cosine below {similar:.4f} are not similar to this model, and {threshold:.4f} "
            "merges them. Raise --threshold.",
            file=sys.stderr,
        )
    if len(groups[0]) > max(LARGEST_COUNT, LARGEST_SHARE * len(owner)):
        print(
            f"warning: the largest group holds {len(groups[0]) / len(owner):.0%} of the file. Look at it before you "
            "delete anything, or raise --threshold.",
            file=sys.stderr,
        )
