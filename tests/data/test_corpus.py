"""A prepared corpus is what its manifest says; which of its sentences are known to be similar, and its queries."""

import shutil

import numpy as np
import pytest

from cosent.data.corpus import leaks, load_corpus, pair_groups, random_subset, sentence_groups
from cosent.data.pairs import PairDataset
from cosent.data.retrieval import retrieval_task
from cosent.errors import InputError


def test_a_subset_is_fixed_and_random(make_corpus, pairs, tokenizer):
    """Fails if --limit_train differs between runs, or takes the first rows of a sorted file."""
    rows = load_corpus(make_corpus({"train": pairs})).split("train")
    some = random_subset(rows, 10, "--limit_train", 1)
    assert some["sentence1"][:] == random_subset(rows, 10, "--limit_train", 1)["sentence1"][:]
    assert some["sentence1"][:] != random_subset(rows, 10, "--limit_train", 2)["sentence1"][:]
    assert len(some) == 10 and len(set(some["sentence1"][:])) > 2
    data = PairDataset(some, tokenizer, 32)
    np.testing.assert_array_equal([row[2]["labels"] for row in data], some["label"][:])
    assert random_subset(rows, 10**6, "--limit_train", 1) is rows


def test_a_file_that_was_changed_after_it_was_prepared(make_corpus):
    """Fails if rows or labels change behind the manifest, which run.json names as what was trained on."""
    folder = make_corpus({"train": [("好", "坏", 0.0)] * 4})
    for rows in ([("好", "坏", 0.0)] * 3, [("好", "坏", 1.0)] * 4):
        shutil.copy(make_corpus({"train": rows}, name="other") / "train.parquet", folder)
        with pytest.raises(InputError, match="train.parquet is damaged, or is of another MANIFEST.json"):
            load_corpus(str(folder))
    manifest = folder / "MANIFEST.json"
    text = manifest.read_text(encoding="utf-8")
    for damaged in (text.replace('"sha256"', '"sha356"'), text.replace('"rows"', '"rops"'), text[:-9], "[" * 9999, "5"):
        manifest.write_text(damaged, encoding="utf-8")
        with pytest.raises(InputError, match="MANIFEST.json cannot be read"):
            load_corpus(str(folder))


def test_groups_are_equal_or_connected_sentences(make_corpus):
    """a ~ b and b ~ c, so a, b and c are one group, on either side; d is only labelled as different from them."""
    rows = [("a", "b", 1.0), ("c", "b", 1.0), ("d", "a", 0.0), ("c", "e", 0.0), ("d", "d", 0.0)]
    groups = sentence_groups(load_corpus(make_corpus({"train": rows})).split("train"), 1.0).tolist()
    names = {name: groups[row][side] for row, pair in enumerate(rows) for side, name in enumerate(pair[:2])}
    assert [[names[name] for name in pair[:2]] for pair in rows] == groups, "one sentence has one group"
    assert names["a"] == names["b"] == names["c"] and len({names["a"], names["d"], names["e"]}) == 3


def test_groups_of_chosen_rows(make_corpus):
    """Fails if a subset of the rows has the groups of others, which `select` keeps in memory only, or an interval takes
    pairs of one question for independent."""
    rows = [(f"x{i}", f"x{i + 1}", float(i % 2)) for i in range(50)]
    chosen = load_corpus(make_corpus({"train": rows})).split("train").select([1, 7, 2, 3])
    groups = sentence_groups(chosen, 1.0)
    assert (groups[:, 0] == groups[:, 1]).tolist() == [True, True, False, True]
    assert groups[0, 1] == groups[2, 0] and groups[2, 1] == groups[3, 0] and groups[1, 0] != groups[0, 0]
    rows = [("a", "b", 1.0), ("d", "e", 0.0), ("b", "c", 0.0), ("f", "f", 0.0), ("e", "g", 1.0)]
    assert pair_groups(load_corpus(make_corpus({"test": rows})).split("test")).tolist() == [0, 1, 0, 2, 1]


ROWS = [("甲", "乙", 1.0), ("乙", "丙", 1.0), ("乙", "甲", 1.0), ("甲", "丁", 0.0), ("戊", "戊", 1.0)]


def described(task) -> dict[str, dict[str, float]]:
    """The relevant sentences of each query with their gains."""
    pool, relevance = task.pool, task.relevance
    return {
        pool[query]: {pool[i]: g for i, g in zip(relevance.items[a:b], relevance.gains[a:b], strict=True)}
        for query, a, b in zip(relevance.queries, relevance.starts, relevance.starts[1:], strict=False)
    }


def test_both_sentences_of_a_similar_pair_are_queries(make_corpus):
    """Fails if a direction is lost, a repeated pair counts twice, or a sentence is to find itself."""
    corpus = load_corpus(str(make_corpus({"test": ROWS})))
    task = retrieval_task(corpus.split("test"), corpus.manifest, "test")
    assert task.pool == ["甲", "乙", "戊", "丙", "丁"]
    assert described(task) == {"甲": {"乙": 1}, "乙": {"甲": 1, "丙": 1}, "丙": {"乙": 1}}


def test_grades_are_gains(make_corpus, caplog):
    """Fails if a weak grade counts as similar, the greatest of two grades is not kept, or a corpus without queries
    gives a mean over none."""
    rows = [("甲", "乙", 4.0), ("乙", "甲", 5.0), ("甲", "丙", 3.0), ("甲", "丁", 4.0)]
    corpus = load_corpus(str(make_corpus({"test": rows}, "graded", 5.0)))
    split = corpus.split("test"), corpus.manifest, "test"
    assert described(retrieval_task(*split))["甲"] == {"乙": 5, "丁": 4}
    corpus = load_corpus(str(make_corpus({"test": [("甲", "乙", 0.0), ("甲", "甲", 1.0)]})))
    assert retrieval_task(corpus.split("test"), corpus.manifest, "test") is None
    assert "test has no two different sentences with a label from 0.8" in caplog.text


def test_leaks_of_either_order(make_corpus):
    """Fails if a mirrored pair, or one of another corpus, is not found, or equal sentences alone count."""
    rows = {"train": [("a", "b", 1.0), ("c", "d", 0.0)], "test": [("a", "d", 1.0)]}
    first = load_corpus(str(make_corpus(rows, name="first")))
    rows = {"test": [("b", "a", 1.0), ("c", "d", 1.0), ("a", "c", 0.0)]}
    second = load_corpus(str(make_corpus(rows, name="second")))
    assert leaks([first], [first, second]) == {"second test": 2}
