"""The demo corpus: 21,000 pairs of everyday and service sentences, written by a grammar.

Grade 4 says the same with another template; 3 says it more strongly or with a detail; 2 differs in one word (a city, a
colour, a number); 1 denies or reverses it (negation, polarity, direction, exchanged roles); 0 is about something else.
The binary variant calls grades 3 and 4 similar. Grades 1 and 2 mostly keep the template and therefore the wording, and
grade 4 changes it: pairs that differ in meaning share more characters than pairs that do not, and one word has to
outweigh all the others.

Train uses the first templates of every meaning. Validation uses the same templates with its own words. Test uses the
held-out templates with its own words: none of its templates or slot words occurs in train.
"""

import re
from functools import cache
from random import Random

from data_scripts.demo.attributes import ATTRIBUTES
from data_scripts.demo.everyday import EVERYDAY, HELD_OUT
from data_scripts.demo.service import SERVICE
from data_scripts.demo.words import SLOTS

SEED = 20220
ROWS = {"train": 20_000, "validation": 500, "test": 500}
SHARES = {4: 0.27, 3: 0.17, 2: 0.2, 1: 0.2, 0: 0.16}  # of the pairs of a split, by grade
KEPT = {4: 0.0, 3: 0.5, 2: 0.85, 1: 0.75, 0: 0.0}  # of the pairs of a grade, those with one template for both sentences
SIMILAR = 3  # the lowest grade that the binary variant labels 1
MEANINGS = EVERYDAY | SERVICE | ATTRIBUTES
ANYWHERE = {"city", "city2", "day", "person", "person2", "money", "number"}  # slots that do not make a topic
FORMS = re.compile(r"\[([^\]]*)\]")
SYNONYMS = re.compile(r"\(([^)]*)\)")
SLOT = re.compile(r"{([a-z]+)(2?)}")

# The sentences of kexue.fm 8541 that quickstart shows after training: the corpus never holds one of them.
SHOWN = frozenset(
    (
        *("今天天气不错", "今天天气很好", "今天天气不好", "我喜欢北京", "我很喜欢北京", "我不喜欢北京"),
        *("电影不错", "电影很好", "电影不好", "红色的苹果", "绿色的苹果"),
        *("给我推荐一款红色的车", "给我推荐一款黑色的车", "推荐一辆红车", "麻烦来一辆红车"),
    )
)


def templates(meaning: str, split: str) -> tuple[str, ...]:
    every = MEANINGS[meaning]
    return every[-HELD_OUT:] if split == "test" else every[:-HELD_OUT]


@cache
def words(slot: str, split: str) -> tuple[str, ...]:
    return tuple(SLOTS[slot][tuple(ROWS).index(split)].split())


def slots_of(meaning: str) -> list[str]:
    """Slots that the templates of a meaning fill, `person2` after `person`."""
    return sorted({"".join(found) for found in SLOT.findall(MEANINGS[meaning][0])})


def has_reverse(meaning: str) -> bool:
    form = FORMS.search(MEANINGS[meaning][0])
    return form.group(1).count("|") == 3 or any(slot.endswith("2") for slot in slots_of(meaning))


def unrelated(one: str, two: str) -> bool:
    """Whether two meanings have different topics, though both may mention the same city, person or day."""
    slots1, slots2 = set(slots_of(one)), set(slots_of(two))
    return slots1 != slots2 and slots1 & slots2 <= ANYWHERE


def draw_values(meaning: str, split: str, random: Random) -> dict[str, str]:
    values: dict[str, str] = {}
    for slot in slots_of(meaning):
        taken = values.get(slot.removesuffix("2"))
        values[slot] = random.choice([word for word in words(slot.removesuffix("2"), split) if word != taken])
    return values


def say(template: str, values: dict[str, str], reverse: bool, strong: bool, random: Random) -> str:
    """Fills a template. For a meaning that is reversed by exchanging words, `values` are already exchanged."""

    def form(match: re.Match) -> str:
        forms = match.group(1).split("|")
        return forms[2 * strong + reverse] if len(forms) == 4 else forms[strong]

    text = FORMS.sub(form, template)
    text = SYNONYMS.sub(lambda match: random.choice(match.group(1).split("/")), text)
    return SLOT.sub(lambda match: values["".join(match.groups())], text)


def exchange(values: dict[str, str]) -> dict[str, str]:
    """The same words with `slot` and `slot2` exchanged: who does it to whom, from where to where."""
    partner = {slot: slot.removesuffix("2") if slot.endswith("2") else slot + "2" for slot in values}
    return {slot: values.get(partner[slot], word) for slot, word in values.items()}


def draw_pair(grade: int, split: str, random: Random) -> tuple[str, str]:
    """Two sentences of one split whose similarity is `grade`, in random order."""
    meaning = random.choice([name for name in MEANINGS if grade != 1 or has_reverse(name)])
    by_exchange = any(slot.endswith("2") for slot in slots_of(meaning))
    values = other = draw_values(meaning, split, random)
    reverse = other_reverse = bool(random.randrange(2))
    strong = other_strong = random.random() < 0.25
    choice = templates(meaning, split)
    template = random.choice(choice)
    keeps_template = random.random() < KEPT[grade]
    other_template = template if keeps_template else random.choice([text for text in choice if text != template])
    if grade == 3:
        strong, other_strong = False, True
    elif grade == 2:
        slot = random.choice(list(values))
        kept = set(values.values())
        other = values | {slot: random.choice([w for w in words(slot.removesuffix("2"), split) if w not in kept])}
    elif grade == 1:
        other, other_reverse = (exchange(values), reverse) if by_exchange else (values, not reverse)
    elif grade == 0:
        meaning = random.choice([name for name in MEANINGS if unrelated(name, meaning)])
        other = draw_values(meaning, split, random) | values
        other_template = random.choice(templates(meaning, split))
    first = say(template, values, reverse, strong, random)
    second = say(other_template, other, other_reverse, other_strong, random)
    pair = (first, second)
    return pair if random.random() < 0.5 else pair[::-1]


@cache
def graded_pairs(split: str) -> tuple[tuple[str, str, float], ...]:
    """Pairs of a split with grades 0 to 4, shuffled; no pair occurs twice in either order."""
    random = Random(f"{SEED} {split}")
    seen: set[frozenset] = set()
    pairs = []
    for grade, share in SHARES.items():
        wanted = len(pairs) + round(share * ROWS[split])
        while len(pairs) < wanted:
            sentence1, sentence2 = draw_pair(grade, split, random)
            key = frozenset((sentence1, sentence2))
            if len(key) == 2 and key not in seen and not key & SHOWN:
                seen.add(key)
                pairs.append((sentence1, sentence2, float(grade)))
    random.shuffle(pairs)
    return tuple(pairs)


def pairs(split: str, binary: bool = False) -> list[tuple[str, str, float]]:
    """Pairs (sentence1, sentence2, label) of a split; the same on every machine and in every run."""
    if not binary:
        return list(graded_pairs(split))
    return [(sentence1, sentence2, float(grade >= SIMILAR)) for sentence1, sentence2, grade in graded_pairs(split)]
