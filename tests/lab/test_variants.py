"""Variants of a sentence: slips and rewordings that leave the changed part alone."""

import random

from lab.probe.variants import VARIANT, adverb_order, changed_part, punctuation, typo, word_pattern


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
    """Fails if a word is found inside another one, as 手机号 in 手机号码, or a changed part is placed wrong."""
    for word, text in (("怎么", "怎么了"), ("手机号", "手机号码"), ("使用", "使用者"), ("登录", "登录名")):
        assert not word_pattern([word]).search(text)
    assert word_pattern(["怎么"]).search("怎么还款") and word_pattern(["使用"]).search("如何使用")
    assert changed_part("我喜欢", "我不喜欢") == (1, 1) and changed_part("我不喜欢", "我喜欢") == (1, 2)
    assert changed_part("满100元", "满200元") == (1, 2) and changed_part("天天", "天天天") == (2, 2)
