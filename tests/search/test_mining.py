"""Mining: the same neighbours as sentence-transformers, and no pair that is labelled."""

import datasets
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives

from cosent.data.corpus import load_corpus
from cosent.models.bi_encoder import SentenceEncoder
from cosent.search import mining
from cosent.search.mining import neighbour_pairs, random_pairs, read_pool

WORDS = [f"{a}{b}" for a in "天地人山水火木金" for b in "大小高低"]
ROWS = [(WORDS[i], WORDS[i + 1], 1.0) for i in range(0, 32, 2)] + [
    (WORDS[i], WORDS[i + 5], 1.0) for i in range(0, 20, 4)
]


@pytest.fixture
def pool(make_corpus):
    return read_pool(load_corpus(str(make_corpus({"train": ROWS}))), [])


def by_sentence_transformers(folder: str, pool, ranks: tuple[int, int], margin: float | None) -> set[frozenset]:
    """Unordered pairs of `mine_hard_negatives`, with every sentence as anchor.

    Each sentence is a positive of itself there, because the pool has it, too.
    """
    texts, both = pool.texts, [*zip(pool.first, pool.second, strict=True), *zip(pool.second, pool.first, strict=True)]
    pairs = [(texts[a], texts[b]) for a, b in both] + [(text, text) for text in texts]
    dataset = datasets.Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    options = {"absolute_margin": margin, "num_negatives": 1, "corpus": texts, "output_format": "labeled-pair"}
    options |= {"range_min": ranks[0], "range_max": ranks[1]}
    mined = mine_hard_negatives(dataset, SentenceTransformer(folder, device="cpu"), verbose=False, **options)
    return {frozenset((row["anchor"], row["positive"])) for row in mined if not row["label"]}


def test_the_same_neighbours_as_sentence_transformers(pool, tiny_bi, monkeypatch):
    """Fails if a rank or a margin means something else than in `mine_hard_negatives`."""
    monkeypatch.setattr(mining, "QUERIES", 7)  # several blocks
    vectors = SentenceEncoder.from_pretrained(str(tiny_bi)).encode(pool.texts, normalize_embeddings=True)
    for *ranks, margin in ((0, 5, None), (3, 12, None), (2, 10, 0.001), (1, 20, -0.01)):
        first, second = neighbour_pairs(pool, vectors, ranks, margin, pool.labels == 1)
        ours = {frozenset((pool.texts[a], pool.texts[b])) for a, b in zip(first, second, strict=True)}
        assert len(ours) == len(first) > 5
        assert ours == by_sentence_transformers(str(tiny_bi), pool, ranks, margin), (ranks, margin)


def test_nothing_known_is_made(make_corpus):
    """Fails if a labelled pair, in either order, or a sentence with other punctuation becomes a negative."""
    rows = [("怎么还款", "如何还款", 1.0), ("怎么还款", "怎么借款", 0.0), ("如何还款", "怎么还款", 1.0)]
    rows.append(("好", "好", 1.0))
    pool = read_pool(load_corpus(str(make_corpus({"train": rows}))), ["怎么还款？", "怎么还款", "天气"])
    assert pool.texts == ["怎么还款", "如何还款", "怎么借款", "好", "怎么还款？", "天气"] and pool.size == 6
    assert list(zip(pool.first, pool.second, pool.labels, strict=True)) == [(0, 1, 1.0), (0, 2, 0.0)]
    vectors = np.eye(6, dtype=np.float32)
    vectors[4] = vectors[0]  # nearest of all, and the same sentence
    by_rank = [neighbour_pairs(pool, vectors, (rank, 5), None, pool.labels == 1) for rank in range(5)]
    first, second = (np.concatenate([pairs[side] for pairs in by_rank]) for side in (0, 1))
    drawn = random_pairs(pool, 12, (first[:0], second[:0]), np.random.default_rng(0))
    labelled = {(0, 1), (0, 2), (0, 4)}
    every = {(a, b) for a in range(6) for b in range(a + 1, 6)} - labelled
    assert {tuple(sorted(pair)) for pair in zip(first, second, strict=True)} == every
    assert {tuple(sorted(pair)) for pair in zip(*drawn, strict=True)} == every
