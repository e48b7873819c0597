"""The probe: accuracy by phenomenon and its intervals."""

import numpy as np
import pytest

from cosent.evaluation.similarity import character_overlap
from lab.probe.phenomena import (
    Item,
    by_phenomenon,
    pairs,
    passed,
    share_interval,
)

ITEMS = [
    Item("number", "a", "满100元", "满100元。", "满200元"),
    Item("number", "b", "满100元包邮", "凑够一百块免运费", "满300元包邮"),
    Item("negation", "c", "能退", "可以退", "不能退"),
]


def test_accuracy_of_a_scorer_by_hand():
    """Fails if accuracy is not the share of items whose other wording scores higher, ties being failures."""
    scores = np.array(list(map(character_overlap, *pairs(ITEMS).values())))
    # 满100元 and 满100元。 share 5 of 5 and 6 characters, 4 of 4 and 5 bigrams; 满200元 shares 4 and 2.
    assert scores[0] == 2 * 9 / 20 and scores[3] == 2 * 6 / 18
    assert passed(scores).tolist() == [True, False, False] and not passed(np.ones(6)).any()
    found = by_phenomenon(ITEMS, np.array([True, True, True]))
    assert list(found) == ["number", "negation"]
    number = found["number"]
    assert (number["items"], number["overlap"], number["accuracy"]) == (2, 0.5, 1.0)


def test_the_interval_counts_templates():
    """Fails if ten copies of a template make an accuracy surer, or agreement of all items a certainty."""
    hits = np.array([1, 0, 1, 1, 0, 1])
    once = share_interval(hits, np.arange(6))
    copied = share_interval(np.repeat(hits, 10), np.repeat(np.arange(6), 10))
    assert copied == pytest.approx(once, abs=0.02)
    low, high = share_interval(np.ones(120), np.repeat(np.arange(12), 10))
    assert high == 1 and 0.6 < low < 0.8
    assert share_interval(np.ones(5), np.zeros(5)) == (0.0, 1.0)
