"""Queries of a labelled corpus."""

import pytest

from cosent.data.corpus import load_corpus
from cosent.data.retrieval import pool_and_relevance
from cosent.errors import InputError

ROWS = [("甲", "乙", 1.0), ("乙", "丙", 1.0), ("乙", "甲", 1.0), ("甲", "丁", 0.0), ("戊", "戊", 1.0)]


def described(pool, relevance) -> dict[str, dict[str, float]]:
    """The relevant sentences of each query with their gains."""
    return {
        pool[query]: {pool[i]: g for i, g in zip(relevance.items[a:b], relevance.gains[a:b], strict=True)}
        for query, a, b in zip(relevance.queries, relevance.starts, relevance.starts[1:], strict=False)
    }


def test_both_sentences_of_a_similar_pair_are_queries(make_corpus):
    """Fails if a direction is lost, a repeated pair counts twice, or a sentence is to find itself."""
    corpus = load_corpus(str(make_corpus({"test": ROWS})))
    pool, relevance, _ = pool_and_relevance(corpus, "test")
    assert pool == ["甲", "乙", "戊", "丙", "丁"]
    assert described(pool, relevance) == {"甲": {"乙": 1}, "乙": {"甲": 1, "丙": 1}, "丙": {"乙": 1}}


def test_grades_are_gains(make_corpus):
    """Fails if a weak grade counts as similar, or the greatest of two grades of a pair is not kept."""
    rows = [("甲", "乙", 4.0), ("乙", "甲", 5.0), ("甲", "丙", 3.0), ("甲", "丁", 4.0)]
    corpus = load_corpus(str(make_corpus({"test": rows}, "graded", 5.0)))
    assert described(*pool_and_relevance(corpus, "test")[:2])["甲"] == {"乙": 5, "丁": 4}
    assert described(*pool_and_relevance(corpus, "test", from_label=3.0)[:2])["甲"] == {"乙": 5, "丙": 3, "丁": 4}


def test_nothing_similar(make_corpus):
    """Fails if a corpus without queries gives a mean over none."""
    corpus = load_corpus(str(make_corpus({"test": [("甲", "乙", 0.0), ("甲", "甲", 1.0)]})))
    with pytest.raises(InputError, match="no two different sentences with a label of at least 0.8"):
        pool_and_relevance(corpus, "test")
