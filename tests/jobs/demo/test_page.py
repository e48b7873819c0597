"""Answers of the page: numbers, verdicts, and sentences in order."""

from dataclasses import replace

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import DecisionRule
from cosent.search.index import Hit
from tests.conftest import save_record

pytest.importorskip("gradio", reason="the page needs gradio: pip install -r requirements-dev.txt")
from cosent.jobs import demo
from cosent.jobs import demo_page as answers
from cosent.jobs.demo_page import LONGEST, MOST_PIECES, Scorer

RULE = DecisionRule("lcqmc", 0.8, Calibration(method="platt", pairs=100, slope=2.0, intercept=0.0))


class Characters:
    """Scores a pair by its shared characters, and writes one sentence or none."""

    def similarity(self, first, second):
        return np.array([len(set(one) & set(two)) / 10 for one, two in zip(first, second, strict=True)])

    def similar_sentences(self, texts, num_samples, keep):
        return [[("写写", 0.5)] if text == "写" else [] for text in texts]


SCORER = Scorer(Characters(), [RULE], "runs/a")


class Found:
    """An index that finds two sentences, with the scores of a reranker if it is given one."""

    def __init__(self, cosine, text="甲"):
        self.cosine, self.text = cosine, text

    def __len__(self):
        return 2

    def search(self, queries, top, reranker, candidates, rule):
        scores = (2.0, -1.0) if reranker else (None, None)
        first, second = Hit(7, self.text, self.cosine, scores[0]), Hit(3, "长" * 5000, self.cosine / 2, scores[1])
        if rule is not None:
            first = replace(first, probability=0.9, verdict="similar", columns={"q": self.text, "a": "答", "no": None})
            second = replace(second, probability=0.2, verdict="not similar")
        return [[first, second]]


def test_a_search_shows_rows_in_order_or_says_that_nothing_is_similar():
    """Fails if a sentence that is not similar is shown as an answer, one that is as none, or columns are mixed up."""
    told = [answers.hits(Found(cosine), [SCORER], "乙")[0] for cosine in (0.79, 0.81)]
    assert ["Nothing found" in message for message in told] == [True, False]
    message, rows = answers.hits(Found(0.1), [Scorer(Characters(), [], "runs/a")], "乙")
    assert message == "" and rows == [["甲", "", "0.1000", "", "7"], ["长" * 5000, "", "0.0500", "", "3"]]
    first, line, second = answers.hits(Found(0.5), [SCORER, SCORER], "乙")[1]
    assert first == ["甲", "2.0000", "0.5000", "0.9000 相似 similar", "7 · a: 答"]
    assert "0.8000" in line[0] and len(line) == 5 and second[3] == "0.2000 不相似 not similar"


def test_pieces_and_their_contributions():
    """Fails if a word falls apart, a Chinese word is one piece, a long sentence costs many scores, or a piece is
    blamed for another one's score: here the score counts marked characters."""
    for sentence, expected in (
        ("我爱北京", ["我", "爱", "北", "京"]),
        ("iPhone 13怎么样？", ["iPhone", "13", "怎", "么", "样", "？"]),
        ("", []),
    ):
        assert [sentence[start:stop] for start, stop in answers.pieces(sentence)] == expected
    spans = answers.pieces("北" * 1000)
    assert len(spans) <= MOST_PIECES and [start for start, _ in spans[1:]] == [stop for _, stop in spans[:-1]]

    calls = []

    def score(first, second):
        calls.append(len(first))
        return np.array([one.count("好") + 10 * other.count("坏") for one, other in zip(first, second, strict=True)])

    total, first, second = answers.contributions(score, "好的好", "不坏")
    assert total == 12 and calls == [6]  # one batch: the pair, 3 and 2 without a piece
    assert first == [("好", 1), ("的", 0), ("好", 1)]
    assert second == [("不", 0), ("坏", 10)]


def test_a_comparison_shows_all():
    """Fails if a score, a verdict or a contribution is missing or wrong."""
    rows, coloured = answers.comparison([SCORER], "北京好", "北京")
    probability = f"{1 / (1 + np.exp(-0.4)):.4f}"
    assert rows == [["runs/a", "0.2000", probability, "不相似 not similar: 0.8000 (lcqmc)"]]
    assert [piece for piece, _ in coloured] == ["北", "京", "好", "\n", "北", "京"]
    assert [added for _, added in coloured] == pytest.approx([1, 1, 0, 0, 1, 1])
    (row,), _ = answers.comparison([SCORER], "一二三四五六七八", "一二三四五六七八")
    assert row[3].startswith("相似 similar")
    (row,), _ = answers.comparison([Scorer(Characters(), [], "m")], "好", "好")
    assert "no threshold" in row[3]


def test_paraphrases():
    """Fails if a paraphrase stands next to another one's scores, or an empty table says nothing."""
    assert answers.paraphrases(Characters(), SCORER, "写") == [["写写", "0.5000", "0.1000"]]
    with pytest.raises(InputError, match="No sentence"):
        answers.paraphrases(Characters(), SCORER, "别写")


def test_what_is_typed_becomes_one_line():
    """Fails if a lone surrogate reaches a tokenizer, or nothing is scored."""
    assert answers.sentence(" 我\t喜欢\r\n北京\x00。\u2028 ", "x") == "我 喜欢 北京 。"
    assert answers.sentence("好\ud83d😀", "x") == "好?😀"
    assert len(answers.sentence("长" * LONGEST, "x")) == LONGEST
    for text, message in (("", "句子一"), (None, "句子一"), (" \n\x00", "句子一"), ("长" * 10_000, "10,000")):
        with pytest.raises(InputError, match=message):
            answers.sentence(text, "句子一")


def test_judges_keep_the_rules_of_their_prompts(tiny_model, tmp_path):
    """Fails if the page gives a verdict by a threshold that was found behind another prompt."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    encoder.save_pretrained(tmp_path)
    for prompt, expected in (("", 1), ("query: ", 0)):
        save_record(tmp_path, {"faq": 0.9}, prompts=(prompt, prompt))
        assert len(Scorer.of(str(tmp_path), encoder).rules) == expected


def test_a_missing_library_is_named_at_once(monkeypatch):
    """Fails if a user waits for models to load, and then reads that a library is missing."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"\[demo\]"):
        demo.check_arguments(demo.DemoArguments(model="mini"))
