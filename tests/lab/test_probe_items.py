"""Minimal pairs: what a grammar writes, what is left as it is, and that it is what ships."""

import re
from collections import Counter

from lab.probe.items import BRACKETS, COUNT, SEED, SLOT, grammar, items
from lab.probe.phenomena import CHANGES, PHENOMENA, read_items

TEMPLATES = [
    (name, number, line) for name, lines in grammar()["templates"].items() for number, line in enumerate(lines)
]


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


def test_what_ships_is_what_the_grammar_writes():
    """Fails if the grammar changed and the shipped items did not: run `python -m lab.probe.items`."""
    assert read_items() == [item for name in PHENOMENA for item in items(name, COUNT, SEED)]
