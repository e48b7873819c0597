"""Contrast sets: paraphrases and typos with the same meaning, and minimal changes of meaning."""

import random
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import yaml

from cosent.evaluation.phenomena import CHANGES
from cosent.search.differences import QUESTION, difference

SLIPPING = "(?![不没无未别一二两三四五六七八九十百千万])[\u4e00-\u9fff]"  # another slip would change the meaning
PRONOUNS = "我们|你们|他们|她们|咱们|大家|我|你|您|他|她"
TIMES = "今天|明天|昨天|后天|前天|今年|去年|明年|最近|现在|刚才|刚刚|周[一二三四五六日]|上周|下周|平时|每天"
ADVERB = re.compile(rf"^(?:(?P<who>{PRONOUNS})(?P<when>{TIMES})|(?P<when2>{TIMES})(?P<who2>{PRONOUNS}))(?![的们])")
QUESTION_WORD = re.compile("[吗呢么]$|什么|怎么|怎样|如何|哪|几|多少|多久|多长|为何|是不是|能不能|有没有|会不会")
DIGITS = "两三四五六七八九"
NUMBER = re.compile(r"(?<![A-Za-z0-9.\-_/:])\d+(?:\.\d+)?(?![A-Za-z0-9\-_/:]|\.\d|[年月日号点])")
COUNTED = "个月|小时|分钟|公里|公斤|天(?![堂空气才下])|年(?![级度代])|周(?![一二三四五六日末])|[岁元块斤件个张台]"
NUMERAL = re.compile(rf"(?<![十百千万第一{DIGITS}])[{DIGITS}](?={COUNTED})")
CODE = re.compile(r"(?<![A-Za-z0-9])(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z]+[A-Za-z0-9]*?(\d+)[A-Za-z0-9]*(?![A-Za-z0-9])")
DATE = re.compile(r"(?<!\d)(\d{1,4})(?=[年月日号点])")
COURTEOUS = re.compile("请问|问一?下|^亲|^[你您]好")
UNIT_NUMBER = rf"(?<=[0-9一半几{DIGITS}十百])"


@cache
def lexicon() -> dict:
    """The lexicons; lists of words are split."""
    data = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    data["exchange"] = {key: [group.split() for group in groups] for key, groups in data["exchange"].items()}
    data["synonyms"] = [group.split() for group in data["synonyms"]]
    data["homophones"] = dict(pair.split(":") for pair in data["homophones"].split())
    data["lookalikes"] = dict(each for pair in data["lookalikes"].split() for each in (pair, pair[::-1]))
    data["traditional"] = dict(data["traditional"].split())
    return data | {name: data[name].split() for name in ("verbs", "polite")}


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


def changed(sentence: str, phenomenon: str, rng: random.Random) -> str | None:
    """The sentence with one thing of a phenomenon exchanged, or None if it has no such thing."""
    found = FINDERS.get(phenomenon, lambda *_: None)(sentence, rng) or exchanged(sentence, phenomenon, rng)
    if found is None or found == sentence:
        return None
    if phenomenon == "negation" and difference(sentence, found) != "negation":
        return None  # a question of the form A-not-A, or a double negation
    return found


def exchanged(sentence: str, phenomenon: str, rng: random.Random) -> str | None:
    """One word of the lexicon by another of its list that the sentence does not have yet."""
    groups = lexicon()["exchange"].get(phenomenon, [])
    matches = list(exchange_pattern(phenomenon).finditer(sentence)) if groups else []
    if phenomenon == "negation":
        questions = [question.span() for question in QUESTION.finditer(sentence)]
        matches = [match for match in matches if not any(match.start() < e and match.end() > s for s, e in questions)]
    rng.shuffle(matches)
    for match in matches:
        found = match[0].upper()  # of units, gb too
        group = next(group for group in groups if found in group)
        others = [word for word in group if word != found and (word not in sentence or word in found)]
        if others:
            return replaced(sentence, match, rng.choice(others))
    return None


@cache
def exchange_pattern(phenomenon: str) -> re.Pattern:
    words = [word for group in lexicon()["exchange"][phenomenon] for word in group]
    pattern = word_pattern(words)
    return re.compile(f"{UNIT_NUMBER}(?:{pattern.pattern})", re.I) if phenomenon == "unit" else pattern


def other_digits(digits: str, rng: random.Random) -> str:
    """Another number of as many digits, which begins with 0 only where this one does."""
    low = 1 if len(digits) == 1 else 0 if digits[0] == "0" else 10 ** (len(digits) - 1)
    value = int(digits)
    near = [n for n in {value + step for step in (-3, -2, -1, 1, 2, 3, 10, -10)} if low <= n < 10 ** len(digits)]
    return str(rng.choice(sorted(near))).zfill(len(digits))


def number(sentence: str, rng: random.Random) -> str | None:
    """Another number of as many digits; of a Chinese numeral in front of a unit another one."""
    if digits := list(NUMBER.finditer(sentence)):
        match = rng.choice(digits)
        whole, dot, rest = match[0].partition(".")
        other = replaced(sentence, match, other_digits(whole, rng) + dot + rest)
        return None if len(whole) > 15 else other
    if numerals := list(NUMERAL.finditer(sentence)):
        match = rng.choice(numerals)
        return replaced(sentence, match, rng.choice(DIGITS[1:].replace(match[0], "")))
    return None


def date(sentence: str, rng: random.Random) -> str | None:
    """Another year, month or day of those written in digits."""
    if not (dates := list(DATE.finditer(sentence))):
        return None
    match = rng.choice(dates)
    unit, value = sentence[match.end()], int(match[0])
    if unit == "年" and value < 1900:
        return None  # a duration
    near = range(value - 3, value + 4) if unit == "年" else range(1, 13 if unit in "月点" else 29)
    return replaced(sentence, match, str(rng.choice([n for n in near if n != value])))


def model(sentence: str, rng: random.Random) -> str | None:
    """Another number in a code of Latin letters and digits."""
    if not (codes := list(CODE.finditer(sentence))):
        return None
    match = rng.choice(codes)
    start, end = match.span(1)
    return sentence[:start] + other_digits(match[1], rng) + sentence[end:]


@cache
def direction_pattern() -> re.Pattern:
    places = "|".join(sorted((w for g in lexicon()["exchange"]["place"] for w in g), key=len, reverse=True))
    return re.compile(rf"({places})(到|去|飞|飞往|至|开往|寄到|发往)({places})")


def direction(sentence: str, rng: random.Random) -> str | None:
    """Origin and destination exchanged."""
    match = direction_pattern().search(sentence)
    return match and replaced(sentence, match, match[3] + match[2] + match[1])


@cache
def roles_pattern() -> re.Pattern:
    verbs = "|".join(sorted(lexicon()["verbs"], key=len, reverse=True))
    who = rf"{PRONOUNS}|男朋友|女朋友|老公|老婆|妈妈|爸爸|老师|同事|客户|老板"
    return re.compile(rf"({who})((?:不|很|真|最|也|还|没)?(?:{verbs})(?:了|过)?)({who})(?![们的家])")


def roles(sentence: str, rng: random.Random) -> str | None:
    """Subject and object of a verb exchanged."""
    match = roles_pattern().search(sentence)
    return None if match is None or match[1] == match[3] else replaced(sentence, match, match[3] + match[2] + match[1])


Finder = Callable[[str, random.Random], str | None]
FINDERS: dict[str, Finder] = {"number": number, "date": date, "model": model, "direction": direction, "roles": roles}


def reworded(sentence: str, other: str, rng: random.Random) -> str:
    """The sentence in other words outside of what `other` changes: a synonym, an adverb, courtesy, or punctuation."""
    kept = changed_part(sentence, other)
    question = QUESTION_WORD.search(sentence) and not COURTEOUS.search(sentence)
    for kind in ("synonym", "adverb_order"):
        if (found := VARIANT[kind](sentence, kept, rng)) is not None:
            return rng.choice(lexicon()["polite"]) + found if question and rng.random() < 0.3 else found
    if question:
        return rng.choice(lexicon()["polite"]) + sentence
    return VARIANT["punctuation"](sentence, kept, rng) or sentence


LABELS = {"reworded": 2.0, "changed": 1.0, "random": 0.0}  # of the pairs to train on
CHANGES_EACH = 3  # most changed pairs of a sentence; it has as many reworded ones


def training_pairs(sentences: Sequence[str], seed: int) -> dict[tuple[str, str], float]:
    """Labelled pairs of sentences: reworded, with one thing changed, and drawn at random.

    Of a changed sentence every other pair is reworded too, since a pair that differs in a single word would otherwise
    always be a changed one. Only sentences that have something to exchange are in pairs, the others in random ones.
    """
    rng = random.Random(f"pairs {seed}")
    pairs: dict[tuple[str, str], float] = {}
    for sentence in sentences:
        changes = {name: other for name in CHANGES if (other := changed(sentence, name, rng)) is not None}
        names = rng.sample(list(changes), min(CHANGES_EACH, len(changes)))
        for name in names:
            other = changes[name]
            reworded_too = rng.random() < 0.5
            pairs.setdefault((sentence, reworded(other, sentence, rng) if reworded_too else other), LABELS["changed"])
        if not changes:
            continue
        kept = changed_part(sentence, rng.choice(list(changes.values())))
        variants = [variant for make in VARIANT.values() if (variant := make(sentence, kept, rng)) is not None]
        variants.append(reworded(sentence, rng.choice(list(changes.values())), rng))
        for variant in rng.sample(variants, min(len(names), len(variants))):
            if variant != sentence:
                pairs.setdefault((sentence, variant), LABELS["reworded"])
        if (another := rng.choice(sentences)) != sentence:
            pairs.setdefault((sentence, another), LABELS["random"])
    return pairs
