"""Answers as HTML: numbers, verdicts, and nothing of a user that a browser would run."""

import re

import numpy as np

from cosent.demo_page import rendering
from cosent.demo_page.models import Judge
from cosent.evaluation.calibration import Platt
from cosent.inference.decision import DecisionRule
from cosent.inference.index import Hit

SCRIPT = "<img src=x onerror=alert(1)>"
RULE = DecisionRule("lcqmc", 0.8, Platt(pairs=100, slope=2.0, intercept=0.0))


class Characters:
    """Scores a pair by its shared characters."""

    def similarity(self, first, second):
        return np.array([len(set(one) & set(two)) / 10 for one, two in zip(first, second, strict=True)])


def text_of(html):
    return re.sub(r"<[^>]*>", " ", html)


def test_verdicts():
    """Fails if the page calls a pair similar below the threshold, or shows another probability than the rule's."""
    above, below = (text_of(rendering.verdict(RULE, score)) for score in (0.8, 0.79))
    assert "相似 similar" in above and "不相似" not in above and "0.8000" in above
    assert "不相似 not similar" in below
    assert f"{1 / (1 + np.exp(-1.6)):.4f}" in above and "lcqmc" in above


def test_a_comparison_shows_all():
    """Fails if the score, the verdict or the largest contribution is missing."""
    shown = rendering.comparison([Judge(Characters(), [RULE], "runs/faq")], "北京好", "北京")
    assert "0.2000" in shown and "不相似" in shown and "交互式 cross-encoder <code>runs/faq</code>" in shown
    assert re.findall(r'piece (\w*)" style="--depth:([\d.]+)">(.)<', shown) == [
        *[("more", "0.75", "北"), ("more", "0.75", "京"), ("", "0.00", "好")],
        *[("more", "0.75", "北"), ("more", "0.75", "京")],
    ]


def test_a_contribution_below_half_a_unit_has_no_sign():
    """Fails if a piece that changes nothing is shown as raising or lowering the score."""
    shown = rendering.coloured([("甲", 0.0049), ("乙", -0.0049), ("丙", -0.0051)], 0.0051)
    assert re.findall(r'piece (\w*)"[^>]*>\w<small>([^<]*)<', shown) == [("", "0.00"), ("", "0.00"), ("less", "-0.01")]


def test_without_a_rule_it_says_so():
    """Fails if a missing verdict looks like a mistake of the page."""
    assert "No threshold" in rendering.judgement(Judge(Characters(), [], "runs/<img>"), "好", "好")


def test_what_users_write_is_text():
    """Fails if a sentence, a row of the searched file or an error message can run a script in somebody's browser."""
    answers = [
        rendering.comparison([Judge(Characters(), [], "runs/<img>")], SCRIPT, SCRIPT),
        rendering.hits([Hit(0, SCRIPT, 0.5)]),
        rendering.paraphrases([(SCRIPT, 0.5, 0.5)], Judge(Characters(), [], "runs/<img>")),
        rendering.message(f"bad {SCRIPT}"),
    ]
    for shown in answers:
        assert "<img" not in shown and "&lt;" in shown


def test_found_sentences_keep_their_order_and_scores():
    """Fails if the table of what was found mixes up columns, with or without a cross-encoder."""
    shown = text_of(rendering.hits([Hit(7, "甲", 0.5, 2.0), Hit(3, "乙", 0.75, -1.0)])).split()
    assert shown[-10:] == ["1", "甲", "2.0000", "0.5000", "7", "2", "乙", "-1.0000", "0.7500", "3"]
    plain = text_of(rendering.hits([Hit(7, "甲", 0.5)]))
    assert "cross" not in plain and plain.split()[-4:] == ["1", "甲", "0.5000", "7"]
    assert "长" * 301 not in rendering.hits([Hit(0, "长" * 5000, 0.5)])


def test_no_paraphrase_is_said():
    """Fails if a student that finishes no sentence shows an empty table."""
    assert "No sentence" in rendering.paraphrases([], Judge(Characters(), [], "runs/<img>"))
