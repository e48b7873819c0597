"""Contrasts: what is exchanged, what is left, slips and rewordings, what to train on, and what may not merge."""

import random
import re
from collections import Counter

import pytest

from cosent.search.contrasts import (
    LABELS,
    VARIANT,
    adverb_order,
    changed,
    changed_part,
    other_digits,
    punctuation,
    reworded,
    training_pairs,
    typo,
    word_pattern,
)
from cosent.search.differences import difference

OWN = [
    "怎么修改绑定的手机号",
    "我可以提前还款吗",
    "还款日是5月12日吗",
    "满200元可以减30元吗",
    "从北京到上海的快递几天能到",
    "iPhone13怎么换电池",
    "今天下午能到账吗",
    "这款手机支持无线充电",
    "我最喜欢红色的外套",
    "所有商品都包邮吗",
    "退款要3天才能到账吗",
    "我借给你100元",
    "上海的门店周一营业吗",
    "开通会员要花多少钱",
    "明天我去北京出差",
    "如何打开自动更新",
    "这个软件很好看",
    "一次最多买5件吗",
    "左边的按钮怎么用",
    "客服什么时候上班",
]
ABROAD = ["美国", "日本", "韩国", "英国", "法国", "德国", "泰国", "加拿大", "澳大利亚"]


@pytest.mark.parametrize(
    ("phenomenon", "sentence", "expected"),
    [
        ("negation", "我可以提前还款吗", {"我不可以提前还款吗"}),
        ("negation", "手机不支持快充", {"手机支持快充"}),
        ("antonym", "如何打开自动更新", {"如何关闭自动更新"}),
        ("unit", "退款要3天才能到账", {"退款要3周才能到账", "退款要3小时才能到账"}),
        ("unit", "内存有16gb", {"内存有16MB", "内存有16TB"}),
        ("date", "还款日是周一", {f"还款日是周{day}" for day in "二三四五六日"}),
        ("place", "在中国上学", {f"在{name}上学" for name in ABROAD}),
        ("direction", "从北京到上海的快递", {"从上海到北京的快递"}),
        ("roles", "我借给你100元", {"你借给我100元"}),
        ("degree", "我最喜欢红色", {"我比较喜欢红色"}),
        ("quantifier", "满200元以上包邮", {"满200元以下包邮"}),
    ],
)
def test_what_is_exchanged(phenomenon, sentence, expected):
    """Fails if a slot is not found, or exchanged for something of another kind."""
    found = {changed(sentence, phenomenon, random.Random(seed)) for seed in range(200)}
    assert found == expected


@pytest.mark.parametrize(
    ("phenomenon", "sentence"),
    [
        ("negation", "能不能退货"),
        ("negation", "有没有优惠"),
        ("negation", "今天开会"),
        ("negation", "为什么功能很多"),
        ("number", "iPhone13怎么用"),
        ("number", "2024年5月的账单"),
        ("unit", "三年级的英语"),
        ("unit", "2008年的奥运会"),
        ("unit", "周六日上班吗"),
        ("date", "存3年的定期"),
        ("model", "怎么还款"),
        ("direction", "到北京"),
        ("roles", "我爱我的家"),
        ("degree", "最近怎么样"),
        ("quantifier", "可以上火车吗"),
    ],
)
def test_what_is_left_alone(phenomenon, sentence):
    """Fails if a part of a word is exchanged, or the number of a code, or a question whose answer stays the same."""
    assert {changed(sentence, phenomenon, random.Random(seed)) for seed in range(20)} == {None}


def test_numbers_and_codes_change_alone():
    """Fails if a changed number has other digits or a changed code other letters."""
    for seed in range(50):
        rng = random.Random(seed)
        number = changed("满200元减3.5元", "number", rng)
        assert re.fullmatch(r"满\d{3}元减\d\.5元", number) and difference("满200元减3.5元", number) == "number or code"
        code = changed("WH1000XM4耳机怎么连", "model", rng)
        assert re.fullmatch(r"WH\d{4}XM4耳机怎么连", code) and code != "WH1000XM4耳机怎么连"
        assert len(other_digits("007", rng)) == 3 and other_digits("9", rng) in "12345678"
        assert changed("存三个月", "number", rng)[1] in "四五六七八九"
        assert changed("三天四天五天六天七天八天九天", "number", rng) is not None


def test_a_rewording_leaves_what_was_changed():
    """Fails if the rewording touches the slot, or says the same as the sentence to the letter."""
    for seed in range(30):
        found = reworded("如何打开自动更新", "如何关闭自动更新", random.Random(seed))
        assert "打开" in found and found != "如何打开自动更新"


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


def test_training_pairs_have_three_grades():
    """Fails if a changed sentence is labelled as a rewording, or a pair has one sentence twice or two labels."""
    pairs = training_pairs(OWN, 0)
    assert pairs == training_pairs(OWN, 0) and set(pairs.values()) == set(LABELS.values())
    counts = Counter(pairs.values())
    assert counts[LABELS["changed"]] >= len(OWN) // 2 and counts[LABELS["reworded"]] >= len(OWN) // 2
    assert all(first != second and first in OWN for first, second in pairs)
    for (first, second), label in pairs.items():
        if label == LABELS["random"]:
            assert second in OWN
        elif label == LABELS["reworded"]:
            assert difference(first, second) != "number or code", (first, second)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("房间101怎么走", "房间102怎么走", "number or code"),
        ("会员有效期3天", "会员有效期3周", "number or code"),
        ("保修三年吗", "保修两年吗", "number or code"),
        ("iPhone 13 多少钱", "iPhone 14 多少钱", "number or code"),
        ("A10怎么设置", "B10怎么设置", "number or code"),
        ("怎么退款", "怎么退款3次", "number or code"),
        ("我能退款", "我不能退款", "negation"),
        ("订单未发货", "订单已发货", "negation"),
        ("怎么还款", "如何还款", None),
        ("能不能退款", "能退款吗", None),
        ("有没有发票", "有发票吗", None),
        ("这个不错", "这个很好", None),
        ("非常慢", "很慢", None),
        ("ＶＩＰ２怎么开", "vip2怎么开", None),
        ("不是不能退", "能退", None),
        ("开一个发票", "开发票", None),
        ("无线网络怎么连", "wifi怎么连", "number or code"),
        ("付1,000元怎么退", "付1000元怎么退", None),
        ("付一千元怎么退", "付1000元怎么退", None),
        ("付一千怎么退", "付两千怎么退", "number or code"),
        ("付3.5万元", "付三万五千元", None),
        ("付3千元", "付3万元", "number or code"),
        ("付0万元", "付1万元", "number or code"),
        ("一亿两千零五十万元", "120500000元", None),
        ("第2天发货", "第二天发货", None),
        ("第2天发货", "2天发货", "number or code"),
        ("二零二四年", "2024年", None),
        ("房间100，200在哪", "房间100200在哪", "number or code"),
        ("iPhone 13 Pro多少钱", "iphone13pro多少钱", None),
        ("wi-fi密码是什么", "WiFi密码是什么", None),
        ("选3-5还是35", "选35还是35", "number or code"),
    ],
)
def test_differences(first, second, reason):
    """Fails if two different things are merged as duplicates, or two ways to say one thing are kept apart."""
    assert difference(first, second) == difference(second, first) == reason
