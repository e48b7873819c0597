"""Minimal pairs: what a grammar writes, what is left as it is, and that it is what ships."""

import re
from collections import Counter

import pytest

from cosent.search.dedup import difference
from lab.probe.items import BRACKETS, COUNT, SEED, SLOT, grammar, items
from lab.probe.phenomena import CHANGES, PHENOMENA, VARIANTS, read_items
from lab.probe.variants import changed_part

TEMPLATES = [
    (name, number, line) for name, lines in grammar()["templates"].items() for number, line in enumerate(lines)
]


@pytest.fixture(scope="module")
def written():
    """120 items of every phenomenon."""
    return {name: items(name, 120, 7) for name in PHENOMENA}


def test_every_template_has_two_wordings_and_two_readings():
    """Fails if a template misses a wording or a bracket, or names a list that is not there."""
    for name, number, line in TEMPLATES:
        wordings = line.split(" = ")
        assert len(wordings) == 2, (name, number)
        slots = [SLOT.findall(wording) for wording in wordings]
        assert set(slots[0]) == set(slots[1]) and {slot for slot, _ in slots[0]} <= set(grammar()["slots"]), line
        for wording in wordings:
            readings = [BRACKETS.sub(rf"\{reading}", wording) for reading in (1, 2)]
            assert readings[0] != readings[1] and not re.search(r"[\[\]|]", readings[0] + readings[1]), line
    assert {name for name, _, _ in TEMPLATES} == {*CHANGES, "adverb_order", "synonym"}
    assert min(Counter(name for name, _, _ in TEMPLATES).values()) >= 12


@pytest.mark.parametrize("name", PHENOMENA)
def test_items_are_many_and_different(written, name):
    """Fails if a phenomenon has too few items or templates for an interval, or one item twice."""
    found = written[name]
    assert len(found) == 120 and len({(item.anchor, item.different) for item in found}) == 120
    assert len({item.template for item in found}) >= 12
    for item in found:
        assert item.phenomenon == name and len({item.anchor, item.same, item.different}) == 3
        assert not re.search(r"[{}\[\]|=]", item.anchor + item.same + item.different)


CODE = re.compile(r"[A-Za-z0-9.]+版?")


def test_the_changed_sentence_differs_in_its_slot_only(written):
    """Fails if a number item also changes a place, a negation item no negation, or a swap loses a word."""
    for item in written["number"] + written["model"]:
        first, second = item.anchor, item.different
        assert CODE.sub("#", first) == CODE.sub("#", second) and difference(first, second) == "number or code", item
        apart = [one != other for one, other in zip(CODE.findall(first), CODE.findall(second), strict=True)]
        assert sum(apart) == 1, item
    for item in written["negation"]:
        pair = (item.anchor, item.different), (item.different, item.anchor)
        assert set("不没") & set("".join(one[slice(*changed_part(one, other))] for one, other in pair)), item
    for item in written["roles"] + written["direction"]:
        sides = set(item.anchor) ^ set(item.different)
        assert Counter(item.anchor) == Counter(item.different) or sides in ({*"左右"}, {*"东西"}), item


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_leaves_the_changed_part_alone(written, name):
    """Fails if a slip hits the word whose change it is compared with."""
    for item in written[name]:
        start, end = changed_part(item.anchor, item.different)
        if name in ("typo", "homophone"):
            first, last = changed_part(item.anchor, item.same)
            assert last < start or first > end or last <= start or first >= end, item
        if name == "punctuation":
            assert re.sub(r"\W", "", item.anchor) == re.sub(r"\W", "", item.same), item
        if name == "traditional":
            assert len(item.anchor) == len(item.same), item


def test_what_ships_is_what_the_grammar_writes():
    """Fails if the grammar changed and the shipped items did not: run `python -m lab.probe.items`."""
    assert read_items() == [item for name in PHENOMENA for item in items(name, COUNT, SEED)]
