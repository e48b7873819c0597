"""Sentences that no cosine may merge."""

import pytest

from cosent.inference.differences import difference


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
    ],
)
def test_differences(first, second, reason):
    """Fails if two different things are merged as duplicates, or two ways to say one thing are kept apart."""
    assert difference(first, second) == difference(second, first) == reason
