"""What two sentences must share to be duplicates, whatever their cosine: numbers, units, Latin codes, negation."""

import re
import unicodedata
from functools import lru_cache

# A number or a code such as 101, 3.5, v2, iphone13, gb-t; with the unit or counter behind a number.
UNITS = "个月|小时|分钟|公里|公斤|厘米|毫米|毫升|周岁|[天日周年月号时分秒元块角次人岁级楼层米斤克升里折倍期版代点页%]"
CODE = re.compile(rf"[a-z0-9]+(?:[.\-_/:][a-z0-9]+)*(?:(?<=\d)(?:{UNITS}))?")
NUMERAL = re.compile(rf"第?[零〇一二两三四五六七八九十百千万亿]+(?:{UNITS})")
# A question of the form A-not-A says nothing of negation, nor do these words with one of its characters.
QUESTION = re.compile(r"(.)[不没]\1|有没有|是否|能否|可否")
NO_NEGATION = re.compile(
    "不错|不仅|不但|不过|不同|差不多|对不起|不好意思|不断|不然|没关系|无线|无论|未来|非常|特别|别人|别的|级别|分别|区别|性别|类别|别墅|莫名"
)
NEGATION = re.compile("[不没无未非别勿莫]")


@lru_cache(maxsize=65536)  # a sentence is in many pairs
def facts(sentence: str) -> tuple[tuple[str, ...], bool]:
    """Numbers and codes of a sentence in order of the alphabet, and whether it is negated.

    Width and case do not matter: `Ｖ２` is `v2`. A double negation is none.
    """
    text = unicodedata.normalize("NFKC", sentence).lower()
    codes = (*CODE.findall(text), *NUMERAL.findall(text))
    negations = NEGATION.findall(NO_NEGATION.sub("", QUESTION.sub("", text)))
    return tuple(sorted(codes)), len(negations) % 2 == 1


def difference(first: str, second: str) -> str | None:
    """Why two sentences cannot be duplicates: `number or code`, `negation`, or None."""
    (codes, negated), (other_codes, other_negated) = facts(first), facts(second)
    if codes != other_codes:
        return "number or code"
    return "negation" if negated != other_negated else None
