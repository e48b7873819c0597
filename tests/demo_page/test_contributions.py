"""Leave-one-out contributions: which pieces, and that they are differences of the score itself."""

import numpy as np
import pytest

from cosent.demo_page.contributions import MOST_PIECES, contributions, pieces


def texts(sentence):
    return [sentence[start:stop] for start, stop in pieces(sentence)]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("我爱北京", ["我", "爱", "北", "京"]),
        ("iPhone 13怎么样？", ["iPhone", "13", "怎", "么", "样", "？"]),
        ("好👩‍👩‍👧!", ["好", "👩‍👩‍👧", "!"]),
        ("👍🏽", ["👍🏽"]),
    ],
)
def test_pieces(sentence, expected):
    """Fails if a word, or an emoji of several code points, falls apart, or a Chinese word is one piece."""
    assert texts(sentence) == expected


def test_a_long_sentence_has_few_pieces():
    """Fails if a long sentence costs a score for each of its characters, or loses some of them."""
    sentence = "北" * 1000
    assert len(pieces(sentence)) <= MOST_PIECES and "".join(texts(sentence)) == sentence


def test_contributions_are_what_is_lost():
    """Fails if a piece is blamed for another one's score: here the score counts marked characters."""
    calls = []

    def score(first, second):
        calls.append(len(first))
        return np.array([one.count("好") + 10 * other.count("坏") for one, other in zip(first, second, strict=True)])

    total, first, second = contributions(score, "好的好", "不坏")
    assert total == 12 and calls == [6]  # one batch: the pair, 3 and 2 without a piece
    assert first == [("好", 1), ("的", 0), ("好", 1)]
    assert second == [("不", 0), ("坏", 10)]
