"""Write the minimal pairs that ship: a sentence, another wording of it, and the sentence with one thing changed.

python -m lab.probe.items        writes lab/probe/phenomena.tsv.gz, from grammar.yaml
"""

import gzip
import random
import re
from functools import cache
from pathlib import Path

import yaml

from lab.probe.phenomena import CHANGES, COLUMNS, ITEMS, PHENOMENA, Item
from lab.probe.variants import VARIANT, changed_part

COUNT, SEED = 120, 42  # items of a phenomenon
TRIES = 60  # draws per item, before a grammar is said to have no more
BRACKETS = re.compile(r"\[([^|\]]*)\|([^|\]]*)\]")
SLOT = re.compile(r"\{([a-z]+)(\d?)\}")


@cache
def grammar() -> dict[str, dict[str, list[str]]]:
    """Slots and templates, split into words and lines."""
    data = yaml.safe_load(Path(__file__).with_name("grammar.yaml").read_text(encoding="utf-8"))
    split = {"slots": str.split, "templates": str.splitlines}
    return {name: {key: split[name](text) for key, text in data[name].items()} for name in data}


def items(phenomenon: str, count: int, seed: int) -> list[Item]:
    """Different items of a phenomenon, as many of each template as can be; fewer than `count` if there are no more."""
    rng = random.Random(f"{phenomenon} {seed}")
    own = phenomenon in grammar()["templates"]
    named = [
        (name, number)
        for name in ([phenomenon] if own else CHANGES)
        for number in range(len(grammar()["templates"][name]))
    ]
    rng.shuffle(named)
    found: dict[tuple[str, str], Item] = {}  # by anchor and change: another wording makes no other item
    for turn in range(TRIES * count):
        if len(found) == count:
            break
        name, number = named[turn % len(named)]
        anchor, same, different = written(grammar()["templates"][name][number], rng)
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
            values[name, number] = rng.choice([word for word in grammar()["slots"][name] if word not in used])
    wordings = SLOT.sub(lambda slot: values[slot[1], slot[2]], template).split(" = ")
    rng.shuffle(wordings)
    reading = rng.randint(1, 2)
    anchor, same = (BRACKETS.sub(rf"\{reading}", wording) for wording in wordings)
    return anchor, same, BRACKETS.sub(rf"\{3 - reading}", wordings[0])


def main() -> None:
    rows = [item for name in PHENOMENA for item in items(name, COUNT, SEED)]
    lines = ["\t".join(COLUMNS), *("\t".join(getattr(row, name) for name in COLUMNS) for row in rows)]
    ITEMS.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), mtime=0))
    print(f"{len(rows)} items in {ITEMS}")


if __name__ == "__main__":
    main()
