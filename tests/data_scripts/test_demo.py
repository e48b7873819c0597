"""If these fail, quickstart measures memorised templates or wording instead of meaning."""

import re
from collections import Counter
from pathlib import Path

import pytest

from cosent.data.files import PAIR, open_table
from cosent.evaluation.similarity import character_overlap
from data_scripts import audit, demo

SHOWN_FILE = Path(__file__).parents[2] / "recipes/demo/pairs_8541.tsv"


def used(split):
    return {sentence for pair in demo.pairs(split) for sentence in pair[:2]}


def test_every_template_of_a_meaning_can_be_filled_and_reversed():
    """A template that lacks a slot or a form would pair sentences that do not mean what the grade says."""
    texts = Counter(text for templates in demo.MEANINGS.values() for text in templates)
    assert max(texts.values()) == 1
    for meaning, templates in demo.MEANINGS.items():
        forms = {len(form.split("|")) for text in templates for form in demo.FORMS.findall(text)}
        assert len(forms) == 1 and forms <= {2, 4}, meaning
        for text in templates:
            assert demo.FORMS.search(text), text
            assert sorted({"".join(found) for found in demo.SLOT.findall(text)}) == demo.slots_of(meaning), text
            if forms == {4}:
                said = re.sub(r"[(){}\[\]]", "", demo.FORMS.sub(lambda match: match.group(1).split("|")[0], text))
                denied = re.sub(r"[(){}\[\]]", "", demo.FORMS.sub(lambda match: match.group(1).split("|")[1], text))
                assert said != denied, text


def test_sizes_and_shares():
    for split, rows in demo.ROWS.items():
        grades = Counter(label for *_, label in demo.pairs(split))
        assert sum(grades.values()) == rows and set(grades) == {0.0, 1.0, 2.0, 3.0, 4.0}
        similar = Counter(label for *_, label in demo.pairs(split, binary=True))
        assert similar[1.0] == grades[3.0] + grades[4.0] and set(similar) == {0.0, 1.0}


def test_the_demo_is_the_same_in_every_run():
    import hashlib

    first = hashlib.sha256(repr([demo.pairs(split) for split in demo.ROWS]).encode()).hexdigest()
    demo.graded_pairs.cache_clear()
    again = hashlib.sha256(repr([demo.pairs(split) for split in demo.ROWS]).encode()).hexdigest()
    assert first == again


def test_no_pair_repeats_and_nothing_leaks():
    pairs = {split: demo.pairs(split) for split in demo.ROWS}
    every = [pair for rows in pairs.values() for pair in rows]
    assert audit.duplicates(every)["repeated_unordered"] == 0
    for split in ("validation", "test"):
        assert audit.leaks(pairs["train"], pairs[split])["one_or_both_sentences"] == 0


def test_test_words_and_templates_are_absent_from_train():
    for slot in demo.SLOTS:
        train, validation, test = (set(demo.words(slot, split)) for split in ("train", "validation", "test"))
        assert len(train) >= 10 and len(validation) >= 3 and len(test) >= 4, slot
        assert not (train & validation or train & test or validation & test), slot
    for meaning in demo.MEANINGS:
        held_out = set(demo.templates(meaning, "test"))
        assert len(held_out) == demo.HELD_OUT and not held_out & set(demo.templates(meaning, "train"))


def test_the_sentences_of_the_quickstart_table_are_not_in_the_corpus():
    pairs = list(open_table(SHOWN_FILE, None, PAIR, "").rows())
    assert {row[name] for row in pairs for name in ("sentence1", "sentence2")} == demo.SHOWN and len(pairs) == 10
    for split in demo.ROWS:
        assert not used(split) & demo.SHOWN


def test_one_word_outweighs_wording():
    """Pairs that differ in a word must look more alike than those that say the same; else a model learns to count."""
    alike: dict[float, list[float]] = {}
    for sentence1, sentence2, grade in demo.pairs("train"):
        alike.setdefault(grade, []).append(character_overlap(sentence1, sentence2))
    means = {grade: sum(values) / len(values) for grade, values in alike.items()}
    assert min(means[1], means[2]) > means[4] + 0.1


def test_wording_does_not_give_the_label_away():
    assert abs(audit.overlap_spearman(demo.pairs("test"))) < 25
    assert abs(audit.overlap_spearman(demo.pairs("test", binary=True))) < 25


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"city": "上海", "city2": "北京"}, {"city": "北京", "city2": "上海"}),
        ({"person": "妈妈", "person2": "孩子", "day": "今天"}, {"person": "孩子", "person2": "妈妈", "day": "今天"}),
    ],
)
def test_exchange_swaps_roles_and_keeps_the_rest(values, expected):
    assert demo.exchange(values) == expected


@pytest.mark.parametrize(("name", "labels"), [("demo", {"0", "1", "2", "3", "4"}), ("demo_binary", {"0", "1"})])
def test_the_demo_is_prepared_without_a_source(bench, name, labels):
    manifest = bench.prepare(name)
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == demo.ROWS
    assert set(manifest["splits"]["test"]["label_histogram"]) == labels
    assert manifest["warnings"] == []
