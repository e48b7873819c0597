"""Deduplication: representatives of near-duplicates by cosine, and the facts that keep two sentences apart."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from cosent.search.neighbours import QUERIES, ROWS, between, blocks

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
