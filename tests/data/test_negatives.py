"""Negative pairs drawn at random: labels stay true."""

import pytest

from cosent.data.corpus import load_corpus
from cosent.data.manifest import COLUMNS
from cosent.data.pairs import random_negatives
from cosent.errors import InputError


def test_random_negatives(make_corpus):
    """Fails if an easy negative is hard, similar or the first sentence again, or if positives, labels or rows move."""
    first = [f"问题{i}" for i in range(40)]
    rows = [(a, f"{a}相同", 1.0) for a in first] + [(a, f"{a}不同", 0.0) for a in first]
    corpus = load_corpus(str(make_corpus({"train": rows})))
    easy = random_negatives(corpus.split("train"), corpus.manifest)
    assert easy.column_names == list(COLUMNS)
    assert easy["sentence1"][:] == [a for a, _, _ in rows] and easy["label"][:] == [label for _, _, label in rows]
    assert easy["sentence2"][:40] == [b for _, b, _ in rows[:40]]
    drawn = easy["sentence2"][40:]
    assert all(new not in (a, f"{a}不同", f"{a}相同") for a, new in zip(first, drawn, strict=True))
    assert len(set(drawn)) > 20
    again = random_negatives(corpus.split("train"), corpus.manifest)
    assert again["sentence2"][:] == easy["sentence2"][:] and again._fingerprint == easy._fingerprint
    assert random_negatives(corpus.split("train"), corpus.manifest, seed=1)["sentence2"][40:] != drawn


def test_random_negatives_need_binary_labels_and_sentences(make_corpus):
    """Fails if pairs are replaced whose label says nothing about being negative, or the search for a sentence hangs."""
    graded = load_corpus(str(make_corpus({"train": [("甲", "乙", 0.0)]}, "graded", name="graded")))
    with pytest.raises(InputError, match="graded labels"):
        random_negatives(graded.split("train"), graded.manifest)
    few = load_corpus(str(make_corpus({"train": [("甲", "乙", 0.0), ("甲", "丙", 1.0)]}, name="few")))
    with pytest.raises(InputError, match="2 different sentences are too few"):
        random_negatives(few.split("train"), few.manifest)
