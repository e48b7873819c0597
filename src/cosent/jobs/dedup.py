"""Find near-duplicates in a file: groups of sentences that are similar to each other.

cosent dedup --model runs/faq --text questions.txt
cosent dedup --model runs/faq --text questions.txt --output unique.txt --threshold 0.98

Every sentence of a group lies within the threshold of its first one. --output keeps the first ones: a sentence per
line, or in a table (csv, xlsx, ...) with the other columns of their rows. A table on stderr says how many sentences
other thresholds drop. Sentences with other numbers, codes or negations are never merged.
"""

import gzip
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from cosent.atomic import write_atomically
from cosent.data.formats import format_of
from cosent.data.writers import output_format, table_writer
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import FILE_KINDS, ModelSource, OutputFile, TextColumn, open_model
from cosent.search.neighbours import QUERIES, ROWS, between, blocks

THRESHOLDS = (0.99, 0.98, 0.97, 0.95, 0.9)  # of the table
EXAMPLES = 2  # merged pairs just above each of them, and pairs that are kept apart
INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # Unicode's categories of control and format characters and of blanks
UNUSED_CHARACTER = "\U00030000"  # a Chinese character that no vocabulary has
CHUNK = 32768  # sentences tokenised at a time

# A number or a code such as 101, 3.5, v2, iphone13, gb-t, 第2; with the unit or counter behind a number.
UNITS = "个月|小时|分钟|公里|公斤|厘米|毫米|毫升|周岁|[天日周年月号时分秒元块角次人岁级楼层米斤克升里折倍期版代点页%]"
CODE = re.compile(rf"(?:第(?=\d))?[a-z0-9]+(?:[.\-_/:][a-z0-9]+)*(?:(?<=\d)(?:{UNITS}))?")
# What may be left out of one: 1,000 is 1000, iphone 13 iphone13, and wi-fi wifi.
OPTIONAL = re.compile(r"(?<=\d),(?=\d{3}(?!\d))|(?<=[a-z])-(?=[a-z])|(?<=[a-z])[\s-]+(?=\d)|(?<=\d)[\s-]+(?=[a-z])")
# Numerals such as 一千, 3万 and 第二, and a letter or digit for each of their characters, which `CODE` finds.
POWER, NUMERALS = "[十百千万亿]", "[零一二三四五六七八九〇两十百千万亿]+"
NUMERAL = re.compile(rf"\d{POWER}|[一二两三四五六七八九]{POWER}(?:{NUMERALS})?|{NUMERALS}(?={UNITS})|(?<=第){NUMERALS}")
IN_LATIN = str.maketrans("零〇一二两三四五六七八九十百千万亿", "001223456789sbqwy")
# 一 in these words counts nothing.
NO_NUMBER = re.compile("一(?=次性|块儿|时|点[也都儿])|(?<=有)一(?=点)")
# Questions that end in a negation, and those of the form A-not-A. 还没还 is no such form: 还 means "yet" there.
QUESTION = re.compile(
    r"(?!还没还)(.{1,2})[不没]\1|有没有?|[了过]还没有?(?=[呢啊呀]?(?:\W|$))"
    r"|(?<=[\u4e00-\u9fff])(?<![都也并还从就又却才偏绝决我你他她们人的么])(?:不|没有?)(?=[呢啊呀哦嘛]?(?:\W|$))"
)
NO_NEGATION = re.compile(
    "不错|不仅|不但|不过|不同|差不多|对不起|不好意思|不断|不停|不久|不管|不论|不光|不然|要不|说不定|没关系|无线|无限|无论|无数|"
    "未来|非常|非洲|除非|莫非|特别|别人|别的|级别|分别|区别|差别|个别|识别|性别|类别|告别|别墅|莫名"
)
NEGATION = re.compile("[不没无未非别勿莫]")


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

    from cosent.search.index import Index

    encoder = open_model(args, bi_encoder=True)
    index = Index.read(args.text, encoder, args.text_column, args.options)
    threshold = merge_threshold(args, encoder.prompts.for_search()[1]) if args.threshold is None else args.threshold
    kept_apart = KeptApart(index.sentences, encoder)
    threshold = min(threshold, 1 - 1e-6)  # equal vectors, in float32
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
    text = "".join(re.sub(r"[\r\n]+", " ", index.sentences[row]) + "\n" for row in rows)
    write_atomically(output, gzip.compress(text.encode()) if output.lower().endswith(".gz") else text)


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


@lru_cache(maxsize=65536)  # a sentence is in many pairs
def facts(sentence: str) -> tuple[tuple[str, ...], bool]:
    """Numbers and codes of a sentence in order of the alphabet, and whether it is negated.

    Their writing does not matter: `Ｖ２` is `v2`, 第二天 is 第2天. A double negation is none.
    """
    text = unicodedata.normalize("NFKC", sentence.replace("，", " ")).lower()  # no comma of 1,000
    counted = OPTIONAL.sub("", NO_NUMBER.sub("", text))
    codes = CODE.findall(NUMERAL.sub(lambda numeral: numeral[0].translate(IN_LATIN), counted))
    negations = NEGATION.findall(NO_NEGATION.sub("", QUESTION.sub("", text)))
    return tuple(sorted(codes)), len(negations) % 2 == 1


def difference(first: str, second: str) -> str | None:
    """Reason why two sentences cannot be duplicates: `number or code`, `negation`, or None."""
    (codes, negated), (other_codes, other_negated) = facts(first), facts(second)
    if codes != other_codes:
        return "number or code"
    return "negation" if negated != other_negated else None


def as_read(model, texts: Sequence[str]) -> list[str]:
    """Visible characters of texts, whatever their width and case, one for all that a model reads as one: 國 is 国."""
    folded = (unicodedata.normalize("NFKC", text).casefold() for text in texts)
    readable = ["".join(char for char in text if unicodedata.category(char) not in INVISIBLE) for text in folded]
    characters = sorted({char for text in readable for char in text if unicodedata.name(char, "").startswith("CJK")})
    *ids, unknown = map(tuple, model.token_ids([*characters, UNUSED_CHARACTER]))
    first: dict[tuple[int, ...], str] = {}
    same = {ord(char): first.setdefault(key, char) for char, key in zip(characters, ids, strict=True) if key != unknown}
    return [text.translate(same) for text in readable]


def colliding(model, sentences: Sequence[str]) -> dict[int, str]:
    """Rows with the tokens of another row that reads differently, see `as_read`, which is the value of each row.

    A model reads such sentences as one, because they differ in unknown characters, in accents that its tokenizer
    strips, or behind its maximum length. Their cosines with other sentences say nothing.
    """
    starts, texts = range(0, len(sentences), CHUNK), as_read(model, sentences)
    keys = [hash(tuple(ids)) for start in starts for ids in model.token_ids(sentences[start : start + CHUNK])]
    first: dict[int, str] = {}
    different = {key for key, text in zip(keys, texts, strict=True) if first.setdefault(key, text) != text}
    return {row: text for row, (key, text) in enumerate(zip(keys, texts, strict=True)) if key in different}


class KeptApart:
    """Whether two sentences may not be merged, whatever their cosine; `reasons` has the pairs that were refused."""

    def __init__(self, sentences: Sequence[str], model):
        self.sentences, self.colliding = sentences, colliding(model, sentences)
        self.reasons: dict[tuple[int, int], str] = {}

    def __call__(self, earlier: int, later: int) -> bool:
        reason = difference(self.sentences[earlier], self.sentences[later])
        if reason is None and self.colliding.get(earlier) != self.colliding.get(later):
            reason = "character that the model does not know"
        if reason is not None:
            self.reasons[earlier, later] = reason
        return reason is not None


def representatives(
    vectors: np.ndarray,
    thresholds: Sequence[float],
    kept_apart: Callable[[int, int], bool] = lambda earlier, later: False,
    progress: Callable[[int], object] = lambda rows: None,
) -> tuple[np.ndarray, np.ndarray]:
    """The representative of each row by threshold: the nearest one before it within the threshold, or the row itself.

    A row without a representative among the rows before it becomes one. So every row lies within the threshold of its
    representative, no chain links rows that differ, and of each group the first row represents it.

    Args:
        vectors: unit vectors, float32 of shape `(rows, width)`, an array or a memory map.
        thresholds: least dot products.
        kept_apart: whether an earlier and a later row may not be in one group, though they are that similar.
        progress: called with the number of further rows that are done.

    Returns:
        Rows of the representatives, int64, and the dot products with them, float32, 1 for a row that represents itself;
        each of shape `(thresholds, rows)`.
    """
    limits = np.asarray(thresholds, np.float32)
    bound = np.nextafter(limits.min(), np.float32(-np.inf))
    every = np.arange(len(vectors))
    owner, cosine = np.tile(every, (len(limits), 1)), np.ones((len(limits), len(vectors)), np.float32)
    for start, block in blocks(vectors, QUERIES):
        first_rows = np.flatnonzero((owner[:, :start] == every[:start]).any(axis=0))
        later, place, values = between(np.tril(block @ block.T, -1), bound)
        earlier = place < later  # a bound below 0 lets in the zeros of `tril`
        parts = [(later[earlier], start + place[earlier], values[earlier])]
        for first in range(0, len(first_rows), ROWS):
            rows = first_rows[first : first + ROWS]
            later, place, values = between(block @ vectors[rows].T, bound)
            parts.append((later, rows[place], values))
        later, candidates, values = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.lexsort((candidates, -values, later))
        ends = np.searchsorted(later[order], np.arange(len(block) + 1))
        for row in np.flatnonzero(np.diff(ends)):
            alone = np.arange(len(limits))  # thresholds at which the row has no representative yet
            for at in order[ends[row] : ends[row + 1]]:
                alone = alone[limits[alone] <= values[at]]
                if not len(alone):
                    break
                candidate = candidates[at]
                joins = owner[alone, candidate] == candidate
                if joins.any() and not kept_apart(int(candidate), int(start + row)):
                    owner[alone[joins], start + row], cosine[alone[joins], start + row] = candidate, values[at]
                    alone = alone[~joins]
        progress(len(block))
    return owner, cosine
