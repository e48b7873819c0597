"""Chinese minimal pairs by phenomenon: a sentence, another wording of it, and the sentence with one thing changed.

The grammars and lexicons are those of `minimal_pairs.yaml`.
"""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from scipy import stats

# What changes the meaning, and what does not.
CHANGES = ("negation", "antonym", "number", "unit", "date", "model", "place", "direction", "roles", "degree",
           "quantifier")  # fmt: skip
VARIANTS = ("punctuation", "typo", "homophone", "traditional", "adverb_order", "synonym")
PHENOMENA = CHANGES + VARIANTS
SLIPPING = "(?![不没无未别一二两三四五六七八九十百千万])[\u4e00-\u9fff]"  # another slip would change the meaning
TRIES = 60  # draws per item, before a grammar is said to have no more

BRACKETS = re.compile(r"\[([^|\]]*)\|([^|\]]*)\]")
SLOT = re.compile(r"\{([a-z]+)(\d?)\}")
PRONOUNS = "我们|你们|他们|她们|咱们|大家|我|你|您|他|她"
TIMES = "今天|明天|昨天|后天|前天|今年|去年|明年|最近|现在|刚才|刚刚|周[一二三四五六日]|上周|下周|平时|每天"
ADVERB = re.compile(rf"^(?:(?P<who>{PRONOUNS})(?P<when>{TIMES})|(?P<when2>{TIMES})(?P<who2>{PRONOUNS}))(?![的们])")
QUESTION_WORD = re.compile("[吗呢么]$|什么|怎么|怎样|如何|哪|几|多少|多久|多长|为何|是不是|能不能|有没有|会不会")


@dataclass(frozen=True)
class Item:
    """A sentence, another sentence of the same meaning, and one of a different meaning.

    Args:
        template: what items are alike by, for intervals: the number of a template, or a sentence of the user's.
    """

    phenomenon: str
    template: str
    anchor: str
    same: str
    different: str


@cache
def lexicon() -> dict:
    """The grammars and lexicons; lists of words are split."""
    data = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    for name in ("slots", "templates"):
        split = str.split if name == "slots" else str.splitlines
        data[name] = {key: split(text) for key, text in data[name].items()}
    data["exchange"] = {key: [group.split() for group in groups] for key, groups in data["exchange"].items()}
    data["synonyms"] = [group.split() for group in data["synonyms"]]
    data["homophones"] = dict(pair.split(":") for pair in data["homophones"].split())
    data["lookalikes"] = dict(each for pair in data["lookalikes"].split() for each in (pair, pair[::-1]))
    data["traditional"] = dict(data["traditional"].split())
    return data | {name: data[name].split() for name in ("verbs", "polite")}


def items(phenomenon: str, count: int, seed: int) -> list[Item]:
    """Different items of a phenomenon, as many of each template as can be; fewer than `count` if there are no more."""
    rng = random.Random(f"{phenomenon} {seed}")
    own = phenomenon in lexicon()["templates"]
    named = [(name, number) for name in ([phenomenon] if own else CHANGES)
             for number in range(len(lexicon()["templates"][name]))]  # fmt: skip
    rng.shuffle(named)
    found: dict[tuple[str, str], Item] = {}  # by anchor and change: another wording makes no other item
    for turn in range(TRIES * count):
        if len(found) == count:
            break
        name, number = named[turn % len(named)]
        anchor, same, different = written(lexicon()["templates"][name][number], rng)
        variant = same if own else VARIANT[phenomenon](anchor, changed_part(anchor, different), rng)
        if variant is not None:
            item = Item(phenomenon, f"{name} {number}", anchor, variant, different)
            found.setdefault((anchor, different), item)
    return list(found.values())


def written(template: str, rng: random.Random) -> tuple[str, str, str]:
    """A sentence of a template in either reading and wording, its other wording, and its other reading."""
    values: dict[tuple[str, str], str] = {}
    for name, number in SLOT.findall(template):
        used = {value for (other, _), value in values.items() if other == name}
        if (name, number) not in values:
            values[name, number] = rng.choice([word for word in lexicon()["slots"][name] if word not in used])
    wordings = SLOT.sub(lambda slot: values[slot[1], slot[2]], template).split(" = ")
    rng.shuffle(wordings)
    reading = rng.randint(1, 2)
    anchor, same = (BRACKETS.sub(rf"\{reading}", wording) for wording in wordings)
    return anchor, same, BRACKETS.sub(rf"\{3 - reading}", wordings[0])


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


def share_interval(hits: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """95% interval of a share of items that come in groups, as those of a template do.

    Wilson's, of as many independent items as vary like these: `n p (1 - p) / variance of the share over groups`, times
    `(1.96 / t)^2` for the few groups that it is estimated from; of as many as there are groups if all items agree.

    Source: Korn and Graubard, Survey Methodology 24 (1998), 193-201, with Wilson's interval.
    """
    count, share = len(hits), float(np.mean(hits))
    number = len(np.unique(groups))
    if number < 2:
        return 0.0, 1.0
    variance, normal = group_variance(hits, groups), stats.norm.ppf(0.975)
    effective = min(count, share * (1 - share) / variance) if variance > 0 else number
    effective *= (normal / stats.t.ppf(0.975, number - 1)) ** 2
    middle = (share + normal**2 / (2 * effective)) / (1 + normal**2 / effective)
    half = (
        normal / (1 + normal**2 / effective) * np.sqrt(share * (1 - share) / effective + normal**2 / (4 * effective**2))
    )
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def difference_interval(first: np.ndarray, second: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """95% interval of the share of `second` minus that of `first` on the same items: Student's t over groups.

    Where all items agree, as far to both sides as the interval of a share of 0 goes.
    """
    gaps, number = second.astype(float) - first, len(np.unique(groups))
    if number < 2:
        return -1.0, 1.0
    half = stats.t.ppf(0.975, number - 1) * np.sqrt(group_variance(gaps, groups))
    half = half or share_interval(np.zeros(len(gaps)), groups)[1]
    return max(-1.0, float(gaps.mean() - half)), min(1.0, float(gaps.mean() + half))


def group_variance(values: np.ndarray, groups: np.ndarray) -> float:
    """Variance of the mean of values that come in groups of any size."""
    _, place = np.unique(groups, return_inverse=True)
    sums = np.bincount(place, weights=values - values.mean())
    return float(len(sums) / (len(sums) - 1) * np.square(sums).sum() / len(values) ** 2)
