"""Reasons against a duplicate, whatever the cosine: different facts, or differences that the model does not read."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress

COLLISION = "token collision: the model cannot tell them apart"
INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}  # Unicode's categories of control and format characters and of blanks
UNHEARD_OF = "\U00030000"  # a Chinese character that no vocabulary has
CHUNK = 32768  # sentences tokenised at a time

# A number or a code such as 101, 3.5, v2, iphone13, gb-t, 第2; with the unit or counter behind a number.
UNITS = "个月|小时|分钟|公里|公斤|厘米|毫米|毫升|周岁|[天日周年月号时分秒元块角次人岁级楼层米斤克升里折倍期版代点页%]"
CODE = re.compile(rf"(?:第(?=\d))?[a-z0-9]+(?:[.\-_/:][a-z0-9]+)*(?:(?<=\d)(?:{UNITS}))?")
# What may be left out of one: 1,000 is 1000, iphone 13 iphone13, and wi-fi wifi.
OPTIONAL = re.compile(r"(?<=\d),(?=\d{3}(?!\d))|(?<=[a-z])-(?=[a-z])|(?<=[a-z])[\s-]+(?=\d)|(?<=\d)[\s-]+(?=[a-z])")
FIGURES, POWERS = "零一二三四五六七八九", {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
POWER, NUMERALS = f"[{''.join(POWERS)}]", f"[{FIGURES}〇两{''.join(POWERS)}]+"
NUMERAL = re.compile(
    rf"(?:\d+(?:\.\d+)?{POWER}+)+|[一二两三四五六七八九]{POWER}(?:{NUMERALS})?|{NUMERALS}(?={UNITS})|(?<=第){NUMERALS}"
)
# A question of the form A-not-A says nothing of negation, nor do these words with one of its characters.
QUESTION = re.compile(r"(.)[不没]\1|有没有|是否|能否|可否")
NO_NEGATION = re.compile(
    "不错|不仅|不但|不过|不同|差不多|对不起|不好意思|不断|不然|没关系|无线|无论|未来|非常|特别|别人|别的|级别|分别|区别|性别|类别|别墅|莫名"
)
NEGATION = re.compile("[不没无未非别勿莫]")


def in_digits(numeral: str) -> str:
    """A number that is written in Chinese, or in part: 一千 is 1000, 3.5万 35000, 二零二四 2024."""
    total, below, digits = 0.0, 0.0, ""  # below the next 万 or 亿
    for character in numeral.replace("〇", "零").replace("两", "二"):
        power = POWERS.get(character, 0)
        if not power:
            digits += str(FIGURES.index(character)) if character in FIGURES else character
        elif power <= 1000:
            below, digits = below + float(digits or 1) * power, ""
        else:
            total, below, digits = total + (below + float(digits or not below)) * power, 0.0, ""
    return f"{total + below + float(digits or 0):.15g}" if POWERS.keys() & set(numeral) else digits


@lru_cache(maxsize=65536)  # a sentence is in many pairs
def facts(sentence: str) -> tuple[tuple[str, ...], bool]:
    """Numbers and codes of a sentence in order of the alphabet, and whether it is negated.

    Their writing does not matter: `Ｖ２` is `v2`, 一千 is `1,000`. A double negation is none.
    """
    text = unicodedata.normalize("NFKC", sentence.replace("，", " ")).lower()  # no comma of 1,000
    codes = CODE.findall(NUMERAL.sub(lambda numeral: in_digits(numeral[0]), OPTIONAL.sub("", text)))
    negations = NEGATION.findall(NO_NEGATION.sub("", QUESTION.sub("", text)))
    return tuple(sorted(codes)), len(negations) % 2 == 1


def difference(first: str, second: str) -> str | None:
    """Reason why two sentences cannot be duplicates: `number or code`, `negation`, or None."""
    (codes, negated), (other_codes, other_negated) = facts(first), facts(second)
    if codes != other_codes:
        return "number or code"
    return "negation" if negated != other_negated else None


def visible(text: str) -> str:
    """The visible characters of a text, without regard to width and case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(character for character in folded if unicodedata.category(character) not in INVISIBLE)


def as_read(model, texts: Sequence[str]) -> list[str]:
    """`visible` of texts, with one character for all that a model reads as one, such as 國 and 国.

    Args:
        model: a `TextModel` or `Bundle`.
    """
    shown = [visible(text) for text in texts]
    characters = sorted({one for text in shown for one in text if unicodedata.name(one, "").startswith("CJK")})
    *ids, unknown = map(tuple, model.token_ids([*characters, UNHEARD_OF]))
    first: dict[tuple[int, ...], str] = {}
    same = {ord(one): first.setdefault(key, one) for one, key in zip(characters, ids, strict=True) if key != unknown}
    return [text.translate(same) for text in shown]


def collisions(model, first: Sequence[str], second: Sequence[str]) -> list[bool]:
    """Whether the two texts of each pair differ (`as_read`) and a model reads the same tokens all the same.

    It does where they differ in unknown characters, in accents that its tokenizer strips, or behind `max_length`.

    Args:
        model: a `TextModel` or `Bundle`.
    """
    ids = model.token_ids([*first, *second])
    equal = [tokens == others for tokens, others in zip(ids, ids[len(first) :], strict=False)]
    shown = iter(as_read(model, [text for pair in compress(zip(first, second, strict=True), equal) for text in pair]))
    return [same and next(shown) != next(shown) for same in equal]


def colliding(model, sentences: Sequence[str]) -> dict[int, str]:
    """The rows of sentences that are in `collisions` with another one, and how they are `as_read`."""
    starts = range(0, len(sentences), CHUNK)
    keys = [hash(tuple(ids)) for start in starts for ids in model.token_ids(sentences[start : start + CHUNK])]
    first: dict[int, int] = {}
    shared = {key for row, key in enumerate(keys) if sentences[first.setdefault(key, row)] != sentences[row]}
    rows = [row for row, key in enumerate(keys) if key in shared]
    texts = dict(zip(rows, as_read(model, [sentences[row] for row in rows]), strict=True))
    wide = {keys[row] for row in rows if texts[row] != texts[first[keys[row]]]}
    return {row: text for row, text in texts.items() if keys[row] in wide}
