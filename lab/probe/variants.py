"""Variants of a sentence with the same meaning: punctuation, typos, homophones, traditional characters, synonyms."""

import random
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import yaml

SLIPPING = "(?![不没无未别一二两三四五六七八九十百千万])[\u4e00-\u9fff]"  # another slip would change the meaning
PRONOUNS = "我们|你们|他们|她们|咱们|大家|我|你|您|他|她"
TIMES = "今天|明天|昨天|后天|前天|今年|去年|明年|最近|现在|刚才|刚刚|周[一二三四五六日]|上周|下周|平时|每天"
ADVERB = re.compile(rf"^(?:(?P<who>{PRONOUNS})(?P<when>{TIMES})|(?P<when2>{TIMES})(?P<who2>{PRONOUNS}))(?![的们])")
QUESTION_WORD = re.compile("[吗呢么]$|什么|怎么|怎样|如何|哪|几|多少|多久|多长|为何|是不是|能不能|有没有|会不会")


@cache
def lexicon() -> dict:
    """The lexicons; lists of words are split."""
    data = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    data["synonyms"] = [group.split() for group in data["synonyms"]]
    data["homophones"] = dict(pair.split(":") for pair in data["homophones"].split())
    data["lookalikes"] = dict(each for pair in data["lookalikes"].split() for each in (pair, pair[::-1]))
    data["traditional"] = dict(data["traditional"].split())
    return data


def changed_part(one: str, other: str) -> tuple[int, int]:
    """Start and end of the part of a sentence that another one does not share: both may be equal, of an insertion."""
    shorter = min(len(one), len(other))
    start = next((place for place in range(shorter) if one[place] != other[place]), shorter)
    rest = shorter - start
    end = next((place for place in range(rest) if one[-1 - place] != other[-1 - place]), rest)
    return start, len(one) - end


def outside(spans: Iterable[re.Match], kept: tuple[int, int]) -> list[re.Match]:
    """The matches that neither overlap the part of a sentence that is to stay as it is, nor touch it."""
    return [match for match in spans if match.end() < kept[0] or match.start() > kept[1]]


def replaced(sentence: str, match: re.Match, word: str) -> str:
    return sentence[: match.start()] + word + sentence[match.end() :]


def word_pattern(words: Iterable[str]) -> re.Pattern:
    """Finds any of the words, the longest first, each as its guard of the lexicon says."""
    guards = lexicon()["guards"]
    return re.compile("|".join(guards.get(word, re.escape(word)) for word in sorted(words, key=len, reverse=True)))


@cache
def synonym_pattern() -> re.Pattern:
    """Finds words that have a synonym: those of one character mean too many things."""
    return word_pattern([word for group in lexicon()["synonyms"] for word in group if len(word) > 1])


def punctuation(sentence: str, kept: tuple[int, int], rng: random.Random) -> str:
    """Other marks at the end and between clauses."""
    body = sentence.rstrip("。！？!?.…～~，,、 ") or sentence
    question = bool(QUESTION_WORD.search(sentence)) or sentence[-1] in "?？"
    ends = [end for end in (("？", "?", "？？", "") if question else ("。", "！", "……", "")) if body + end != sentence]
    return re.sub("[，,]", lambda _: rng.choice("， ,"), body) + rng.choice(ends)


def typo(sentence: str, kept: tuple[int, int], rng: random.Random) -> str | None:
    """One slip: two characters exchanged, one written twice, or one that looks like another."""
    places = outside(re.finditer(SLIPPING, sentence), kept)
    alike = [match for match in places if match[0] in lexicon()["lookalikes"]]
    pairs = outside(re.finditer(rf"(?=({SLIPPING})(?!\1){SLIPPING})", sentence), (kept[0] - 2, kept[1]))  # no width
    kinds = [kind for kind, some in (("alike", alike), ("twice", places), ("exchanged", pairs)) if some]
    if not kinds:
        return None
    kind = rng.choice(kinds)
    if kind == "exchanged":
        place = rng.choice(pairs).start()
        return sentence[:place] + sentence[place + 1] + sentence[place] + sentence[place + 2 :]
    match = rng.choice(alike if kind == "alike" else places)
    return replaced(sentence, match, lexicon()["lookalikes"][match[0]] if kind == "alike" else match[0] * 2)


def homophone(sentence: str, kept: tuple[int, int], rng: random.Random) -> str | None:
    """One word in characters of the same sound, as a phonetic keyboard offers them."""
    found = outside(word_pattern(tuple(lexicon()["homophones"])).finditer(sentence), kept)
    match = rng.choice(found) if found else None
    return match and replaced(sentence, match, lexicon()["homophones"][match[0]])


def traditional(sentence: str, kept: tuple[int, int], rng: random.Random) -> str | None:
    """All characters whose traditional form is unambiguous in that form."""
    changed = "".join(lexicon()["traditional"].get(character, character) for character in sentence)
    return None if changed == sentence else changed


def adverb_order(sentence: str, kept: tuple[int, int], rng: random.Random) -> str | None:
    """A time in front of its subject behind it, or the reverse: 我明天, 明天我."""
    match = next(iter(outside(ADVERB.finditer(sentence), kept)), None)
    if match is None:
        return None
    who, when = match["who"] or match["who2"], match["when"] or match["when2"]
    return replaced(sentence, match, when + who if match["who"] else who + when)


def synonym(sentence: str, kept: tuple[int, int], rng: random.Random) -> str | None:
    """One word by another of the same meaning."""
    found = outside(synonym_pattern().finditer(sentence), kept)
    if not found:
        return None
    match = rng.choice(found)
    group = next(group for group in lexicon()["synonyms"] if match[0] in group)
    return replaced(sentence, match, rng.choice([word for word in group if word != match[0]]))


VARIANT = {
    "punctuation": punctuation,
    "typo": typo,
    "homophone": homophone,
    "traditional": traditional,
    "adverb_order": adverb_order,
    "synonym": synonym,
}
