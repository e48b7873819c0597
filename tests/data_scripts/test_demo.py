"""If these fail, quickstart measures memorised sentences or wording instead of meaning."""

from pathlib import Path

import pytest

from cosent.data.files import PAIR, open_table
from cosent.evaluation.similarity import character_overlap
from data_scripts import audit
from data_scripts.corpora import CORPORA
from data_scripts.sources import from_demo

SHOWN_FILE = Path(__file__).parents[2] / "recipes/demo/pairs_8541.tsv"
ROWS = {"train": 20_000, "validation": 500, "test": 500}


def pairs_of(name: str) -> dict[str, list]:
    source = from_demo(CORPORA[name])
    return {split: [pair for _, _, pair in source.lines(split)] for split in ROWS}


@pytest.fixture(scope="module")
def graded() -> dict[str, list]:
    return pairs_of("demo")


def test_sizes_and_labels(graded):
    binary = pairs_of("demo_binary")
    assert {split: len(rows) for split, rows in graded.items()} == ROWS
    for split, rows in graded.items():
        assert {label for *_, label in rows} == {0.0, 1.0, 2.0, 3.0, 4.0}
        assert binary[split] == [(*pair, float(grade >= 3)) for *pair, grade in rows]
    assert abs(audit.overlap_spearman(binary["test"])) < 25


def test_no_pair_repeats_and_no_sentence_leaks(graded):
    pairs = [pair for rows in graded.values() for pair in rows]
    assert len(audit.labels_by_pair(pairs)) == len(pairs)
    for held_out in ("validation", "test"):
        assert audit.leaks(graded["train"], graded[held_out])["one_or_both_sentences"] == 0


def test_the_sentences_of_the_quickstart_table_are_not_in_the_corpus(graded):
    table = open_table(SHOWN_FILE, None, PAIR, "")
    shown = {row[name] for row in table.rows() for name in table.sentences}
    assert len(shown) == 15
    assert not shown & {sentence for rows in graded.values() for pair in rows for sentence in pair[:2]}


def test_one_word_outweighs_wording(graded):
    """Pairs that differ in a word must look more alike than those that say the same; else a model learns to count."""
    overlaps: dict[float, list[float]] = {}
    for sentence1, sentence2, grade in graded["train"]:
        overlaps.setdefault(grade, []).append(character_overlap(sentence1, sentence2))
    means = {grade: sum(values) / len(values) for grade, values in overlaps.items()}
    assert min(means[1], means[2]) > means[4] + 0.1
    assert abs(audit.overlap_spearman(graded["test"])) < 25


def test_the_demo_is_prepared_without_a_source(bench):
    manifest = bench.prepare("demo_binary")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == ROWS and manifest["warnings"] == []
