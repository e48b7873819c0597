"""Find near-duplicates in a file: groups of sentences that are similar to each other.

cosent dedup --model runs/faq --text questions.txt
cosent dedup --model runs/faq --text questions.txt --output unique.txt --threshold 0.98

Every sentence of a group lies within the threshold of its first one. --output keeps the first ones: a sentence per
line, or in a table (csv, xlsx, ...) with the other columns of their rows. A table on stderr says how many sentences
other thresholds drop. Sentences with other numbers, codes or negations are never merged.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.data.formats import format_of
from cosent.data.writers import output_format, table_writer
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import FILE_KINDS, ModelSource, OutputFile, TextColumn, open_model

THRESHOLDS = (0.99, 0.98, 0.97, 0.95, 0.9)  # of the table
EXAMPLES = 2  # merged pairs just above each of them, and pairs that are kept apart


@dataclass(kw_only=True)
class DedupArguments(OutputFile, TextColumn, ModelSource):
    """Deduplication options."""

    text: list[str] = option(REQUIRED, f"Files of sentences: {FILE_KINDS}")
    threshold: float | None = option(
        None,
        "Lowest cosine with the first sentence of a group; default: the lowest at which 9 of 10 pairs are similar, by "
        "the model's validation pairs, if 1 of 10 close pairs is.",
    )
    corpus: str | None = option(None, "Corpus whose threshold to use; default: the one for all of training.")
    json: bool = option(False, "Print JSON lines instead of text.")


def main(args: DedupArguments) -> None:
    args.refuse_existing()  # before imports that take seconds
    if args.threshold is not None and not -1 <= args.threshold <= 1:
        raise InputError(f"--threshold {args.threshold}: expected a cosine, from -1 to 1. Correct it, e.g. to 0.9.")
    if args.output is not None and Path(args.output).resolve() in {Path(path).resolve() for path in args.text}:
        raise InputError(f"--output {args.output} is an input. Name another file.")
    if args.json and args.output is not None:
        raise InputError("--json prints groups, and --output writes the first sentence of each. Give one of the two.")
    if args.output is not None:
        is_table(args.output)
    resolve(args.model)
    from tqdm.auto import tqdm

    from cosent.search.dedup import KeptApart, representatives
    from cosent.search.index import Index

    encoder = open_model(args, bi_encoder=True)
    index = Index.read(args.text, encoder, args.text_column, args.options)
    threshold = merge_threshold(args, encoder.prompts.for_search()[1]) if args.threshold is None else args.threshold
    kept_apart = KeptApart(index.sentences, encoder)
    thresholds = sorted({threshold, *THRESHOLDS}, reverse=True)
    with tqdm(total=len(index), desc="Sentences", unit="sentence", file=sys.stderr) as progress:
        owners, cosines = representatives(index.vectors, thresholds, kept_apart, progress.update)
    owner, cosine = (columns[thresholds.index(threshold)] for columns in (owners, cosines))
    if args.output is None:
        print_groups(index, owner, cosine, args.json)
    else:
        first_rows = np.unique(owner)
        write_rows(args.output, index, first_rows)
        print(json.dumps({"output": args.output, "sentences": len(owner), "kept": len(first_rows)}))
    print(*table(index.sentences, thresholds, owners, cosines, threshold), sep="\n", file=sys.stderr)
    print(*apart(index, kept_apart.reasons, threshold), sep="", end="", file=sys.stderr)


def merge_threshold(args: DedupArguments, prompt: str) -> float:
    """The cosine from which the model's decision rule merges sentences."""
    from cosent.models.decision import rule_for

    rule, reason = rule_for(args.model, (prompt, prompt), args.corpus)
    if rule is None:
        raise InputError(f"{reason}. Give --threshold, e.g. 0.97.")
    if rule.merge_threshold is None:
        raise InputError(
            f"{args.model}: on validation no cosine tells duplicates from other close pairs well enough to merge "
            "them. Give --threshold, e.g. 0.97, and look at the groups first."
        )
    return rule.merge_threshold


def is_table(output: str) -> bool:
    """Whether an output is a table by its name; refuses one that is not written."""
    return format_of(output) not in (None, "txt") and bool(output_format(output))


def write_rows(output: str, index, rows: np.ndarray) -> None:
    """Writes rows: a sentence per line, or where the name ends as a table, with their other columns."""
    if is_table(output):
        records = [index.columns[row] or {"text": index.sentences[row]} for row in rows]
        with table_writer(output, list(dict.fromkeys(name for record in records for name in record))) as write:
            return write(records)
    lines = (re.sub(r"[\r\n]+", " ", index.sentences[row]) + "\n" for row in rows)
    write_atomically(output, "".join(lines))


def print_groups(index, owner: np.ndarray, cosine: np.ndarray, as_json: bool) -> None:
    """Prints the groups of several sentences, the largest first, each row with its cosine with the first one."""
    _, members, sizes = np.unique(owner, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(members, kind="stable"), sizes.cumsum()[:-1])
    groups = sorted((rows for rows in groups if len(rows) > 1), key=len, reverse=True)
    if groups and not as_json:
        print("     row  cosine  sentence")
    for number, rows in enumerate(groups, start=1):
        sentences, cosines = [index.sentences[row] for row in rows], cosine[rows].tolist()
        if as_json:
            group = {"rows": rows.tolist(), "sentences": sentences, "cosines": [round(each, 6) for each in cosines]}
            group["exact"] = [sentence == sentences[0] for sentence in sentences]
            group |= {"columns": [index.columns[row] for row in rows]} if index.columns[0] else {}
            print(json.dumps(group, ensure_ascii=False, default=str))
            continue
        print(f"group {number}: {len(rows)} sentences")
        lines = zip(rows, cosines, sentences, strict=True)
        print(*(f"{row:>8}  {value:.4f}  {sentence}" for row, value, sentence in lines), sep="\n")


def table(sentences, thresholds: list[float], owners: np.ndarray, cosines: np.ndarray, threshold: float) -> list[str]:
    """Lines of what each threshold drops, with the merged pairs just above it; an arrow at the one that was used."""
    lines = [f"threshold   of {len(sentences):,} dropped, and the farthest"]
    for value, owner, cosine in zip(thresholds, owners, cosines, strict=True):
        dropped = np.flatnonzero(owner != np.arange(len(owner)))
        farthest = dropped[np.argsort(cosine[dropped], kind="stable")][:EXAMPLES]
        examples = "; ".join(f"{sentences[owner[row]]} / {sentences[row]} ({cosine[row]:.4f})" for row in farthest)
        lines.append(f"{'->' if value == threshold else '  '} {value:.4f} {len(dropped):>12,}  {examples}".rstrip())
    return lines


def apart(index, reasons: dict[tuple[int, int], str], threshold: float) -> list[str]:
    """A line about the pairs above the threshold that are never merged."""
    pairs = [pair for pair in reasons if index.vectors[pair[0]] @ index.vectors[pair[1]] >= threshold]
    counts = Counter(reasons[pair] for pair in pairs).most_common()
    examples = "; ".join(" / ".join(index.sentences[row] for row in pair) for pair in pairs[:EXAMPLES])
    listed = ", ".join(f"{count:,} by {reason}" for reason, count in counts)
    return [f"kept apart: {listed} ({examples})\n"] if pairs else []
