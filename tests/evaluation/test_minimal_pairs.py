"""Minimal pairs: what a grammar writes, what is left as it is, and how sure an accuracy is."""

import random
import re
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from cosent.evaluation.minimal_pairs import (
    BRACKETS,
    CHANGES,
    PHENOMENA,
    SLOT,
    VARIANT,
    VARIANTS,
    adverb_order,
    changed_part,
    difference_interval,
    items,
    lexicon,
    punctuation,
    share_interval,
    typo,
    word_pattern,
)
from cosent.inference.differences import difference

TEMPLATES = [
    (name, number, line) for name, lines in lexicon()["templates"].items() for number, line in enumerate(lines)
]


@pytest.fixture(scope="module")
def written():
    """120 items of every phenomenon."""
    return {name: items(name, 120, 7) for name in PHENOMENA}


def test_every_template_has_two_wordings_and_two_readings():
    """Fails if a template misses a wording or a bracket, or names a list that is not there."""
    for name, number, line in TEMPLATES:
        wordings = line.split(" = ")
        assert len(wordings) == 2, (name, number)
        slots = [SLOT.findall(wording) for wording in wordings]
        assert set(slots[0]) == set(slots[1]) and {slot for slot, _ in slots[0]} <= set(lexicon()["slots"]), line
        for wording in wordings:
            readings = [BRACKETS.sub(rf"\{reading}", wording) for reading in (1, 2)]
            assert readings[0] != readings[1] and not re.search(r"[\[\]|]", readings[0] + readings[1]), line
    assert {name for name, _, _ in TEMPLATES} == {*CHANGES, "adverb_order", "synonym"}
    assert min(Counter(name for name, _, _ in TEMPLATES).values()) >= 12


@pytest.mark.parametrize("name", PHENOMENA)
def test_items_are_many_and_different(written, name):
    """Fails if a phenomenon has too few items or templates for an interval, or one item twice."""
    found = written[name]
    assert len(found) == 120 and len({(item.anchor, item.different) for item in found}) == 120
    assert len({item.template for item in found}) >= 12
    for item in found:
        assert item.phenomenon == name and len({item.anchor, item.same, item.different}) == 3
        assert not re.search(r"[{}\[\]|=]", item.anchor + item.same + item.different)


CODE = re.compile(r"[A-Za-z0-9.]+版?")


def test_the_changed_sentence_differs_in_its_slot_only(written):
    """Fails if a number item also changes a place, a negation item no negation, or a swap loses a word."""
    for item in written["number"] + written["model"]:
        first, second = item.anchor, item.different
        assert CODE.sub("#", first) == CODE.sub("#", second) and difference(first, second) == "number or code", item
        apart = [one != other for one, other in zip(CODE.findall(first), CODE.findall(second), strict=True)]
        assert sum(apart) == 1, item
    for item in written["negation"]:
        pair = (item.anchor, item.different), (item.different, item.anchor)
        assert set("不没") & set("".join(one[slice(*changed_part(one, other))] for one, other in pair)), item
    for item in written["roles"] + written["direction"]:
        sides = set(item.anchor) ^ set(item.different)
        assert Counter(item.anchor) == Counter(item.different) or sides in ({*"左右"}, {*"东西"}), item


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_leaves_the_changed_part_alone(written, name):
    """Fails if a slip hits the word whose change it is compared with."""
    for item in written[name]:
        start, end = changed_part(item.anchor, item.different)
        if name in ("typo", "homophone"):
            first, last = changed_part(item.anchor, item.same)
            assert last < start or first > end or last <= start or first >= end, item
        if name == "punctuation":
            assert re.sub(r"\W", "", item.anchor) == re.sub(r"\W", "", item.same), item
        if name == "traditional":
            assert len(item.anchor) == len(item.same), item


def test_variants_by_hand():
    """Fails if a variant is not what its name says, or is made up where a sentence offers none."""
    rng = random.Random(0)
    assert adverb_order("我明天去北京", (4, 6), rng) == "明天我去北京"
    assert adverb_order("明天我去北京", (4, 6), rng) == "我明天去北京"
    assert adverb_order("北京的天气", (0, 0), rng) is None
    assert {punctuation("怎么还款？", (0, 0), rng) for _ in range(50)} == {"怎么还款", "怎么还款?", "怎么还款？？"}
    slips = {typo("还款", (5, 5), rng) for _ in range(50)}
    assert slips == {"款还", "还还款", "还款款"}
    assert typo("三不", (5, 5), rng) is None  # 不三 or 三三不 would say something else
    assert VARIANT["homophone"]("登录客服", (9, 9), random.Random(1)) in ("登陆客服", "登录克服")
    assert VARIANT["traditional"]("还没发货", (0, 0), rng) == "還沒發貨"
    assert VARIANT["synonym"]("怎么了", (9, 9), rng) is None  # 如何了 is no Chinese
    assert VARIANT["synonym"]("怎么还款", (9, 9), rng) in ("怎样还款", "如何还款")


def test_guards_keep_words_whole():
    """Fails if a word is found inside another one, as 会 in 会议, or an insertion, a deletion or a repeated character
    is placed wrong."""
    for word, text in (("会", "会议"), ("能", "功能"), ("以上", "可以上火车"), ("年", "2008年"), ("最", "最近")):
        assert not word_pattern([word]).search(text)
    assert word_pattern(["会"]).search("明天会下雨") and word_pattern(["年"]).search("存3年")
    assert changed_part("我喜欢", "我不喜欢") == (1, 1) and changed_part("我不喜欢", "我喜欢") == (1, 2)
    assert changed_part("满100元", "满200元") == (1, 2) and changed_part("天天", "天天天") == (2, 2)


def test_the_interval_of_independent_items_is_wilsons():
    """Fails if templates of one item each do not give the interval of the books, but for Student's t."""
    hits = np.arange(40) < 30
    low, high = share_interval(hits, np.arange(40))
    expected = stats.binomtest(30, 40).proportion_ci(method="wilson")
    assert low == pytest.approx(expected.low, abs=0.01) and high == pytest.approx(expected.high, abs=0.01)
    assert low < expected.low < expected.high < high


def test_the_interval_counts_templates():
    """Fails if ten copies of a template make an accuracy surer, or agreement of all items a certainty."""
    hits = np.array([1, 0, 1, 1, 0, 1])
    once = share_interval(hits, np.arange(6))
    copied = share_interval(np.repeat(hits, 10), np.repeat(np.arange(6), 10))
    assert copied == pytest.approx(once, abs=0.02)
    low, high = share_interval(np.ones(120), np.repeat(np.arange(12), 10))
    assert high == 1 and 0.6 < low < 0.8
    assert share_interval(np.ones(5), np.zeros(5)) == (0.0, 1.0)


def test_the_interval_covers():
    """Fails if intervals of clustered hits miss the share they are of much more often than promised."""
    rng, covered = np.random.default_rng(0), 0
    groups = np.repeat(np.arange(12), 10)
    for _ in range(400):
        shares = rng.beta(2, 3, size=12)
        low, high = share_interval(rng.random(120) < shares[groups], groups)
        covered += low <= 0.4 <= high
    assert covered >= 0.91 * 400


def test_the_difference_is_of_the_same_items():
    """Fails if agreement of 12 templates is taken for a proof, or the sign is reversed."""
    hits, groups = np.arange(60) % 3 == 0, np.repeat(np.arange(12), 5)
    half = share_interval(np.zeros(60), groups)[1]
    assert difference_interval(hits, hits, groups) == (-half, half) and 0.2 < half < 0.35
    low, high = difference_interval(hits, np.ones(60, bool), groups)
    assert 0.4 < low < 2 / 3 < high < 0.9
