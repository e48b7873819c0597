"""Answers of the page: numbers, verdicts, pairs that are exported, and nothing of a user that a browser would run."""

import base64
import re

import numpy as np
import pytest

from cosent.cli import parse
from cosent.data.manifest import Manifest
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, DecisionRule
from cosent.inference.index import Hit
from cosent.models.bi_encoder import SentenceEncoder
from data_scripts import prepare
from tests.conftest import save_record

pytest.importorskip("gradio", reason="the page needs gradio: pip install -r requirements-dev.txt")
from cosent import demo
from cosent.demo_page import page as answers
from cosent.demo_page.page import LONGEST, MOST_PIECES, MOST_ROWS, Judge, Models

SCRIPT = "<img src=x onerror=alert(1)>"
RULE = DecisionRule("lcqmc", 0.8, Calibration(method="platt", pairs=100, slope=2.0, intercept=0.0))
EMPTY = ["", None, "", ""]


class Characters:
    """Scores a pair by its shared characters, and writes one sentence or none."""

    def similarity(self, first, second):
        return np.array([len(set(one) & set(two)) / 10 for one, two in zip(first, second, strict=True)])

    def similar_sentences(self, texts, num_samples, keep):
        return [[(SCRIPT, 0.5)] if text == "写" else [] for text in texts]


JUDGE = Judge(Characters(), [RULE], "runs/<img>")


class Found:
    """An index that finds two sentences, with the scores of a reranker if it is given one."""

    def __init__(self, cosine, text="甲"):
        self.cosine, self.text = cosine, text

    def __len__(self):
        return 2

    def search(self, queries, top, reranker, candidates):
        scores = (2.0, -1.0) if reranker else (None, None)
        return [[Hit(7, self.text, self.cosine, scores[0]), Hit(3, "长" * 5000, self.cosine / 2, scores[1])]]


def test_a_search_shows_rows_in_order_or_says_that_nothing_is_similar():
    """Fails if a sentence that is not similar is shown as an answer, one that is as none, or columns are mixed up."""
    shown = [answers.hits(Models([JUDGE], Found(cosine)), "乙") for cosine in (0.79, 0.81)]
    assert ["Nothing found" in html for html in shown] == [True, False]
    plain = answers.hits(Models([Judge(Characters(), [], "runs/a")], Found(0.1)), "乙")
    assert "Nothing found" not in plain and "长" * 301 not in plain and "交互式" not in plain
    assert re.findall("<td>(.{,6})</td>", plain) == ["1", "甲", "0.1000", "7", "2", "0.0500", "3"]
    reranked = answers.hits(Models([JUDGE, JUDGE], Found(0.5)), "乙")
    assert re.findall("<td>(.{,7})</td>", reranked)[:5] == ["1", "甲", "2.0000", "0.5000", "7"]


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
    """Fails if a score, a verdict or a contribution is missing or wrong, or one below 0.005 has a colour."""
    shown = answers.comparison([JUDGE], "北京好", "北京")
    assert "0.2000" in shown and "不相似" in shown and "交互式 cross-encoder" in shown
    assert f"{1 / (1 + np.exp(-0.4)):.4f} (lcqmc)" in shown and "threshold 0.8000" in shown
    assert re.findall(r'piece (\w*)" style="--depth:([\d.]+)">(.)<small>([^<]*)<', shown) == [
        *[("more", "0.75", "北", "+0.10"), ("more", "0.75", "京", "+0.10"), ("", "0.00", "好", "0.00")],
        *[("more", "0.75", "北", "+0.10"), ("more", "0.75", "京", "+0.10")],
    ]
    above = answers.comparison([JUDGE], "一二三四五六七八", "一二三四五六七八")
    assert "相似 similar" in above and "不相似" not in above
    assert "No threshold" in answers.comparison([Judge(Characters(), [], "m")], "好", "好")


def test_what_users_write_is_text():
    """Fails if a sentence, a row of the searched file or an error message can run a script in somebody's browser."""
    for shown in (
        answers.comparison([JUDGE], SCRIPT, SCRIPT),
        answers.hits(Models([JUDGE], Found(0.5, SCRIPT)), SCRIPT),
        answers.paraphrases(Models([JUDGE], student=Characters()), "写"),
        answers.HTML.message(f"bad {SCRIPT}"),
    ):
        assert "<img" not in shown and "&lt;" in shown
    assert "No sentence" in answers.paraphrases(Models([JUDGE], student=Characters()), "别写")


def test_what_is_typed_becomes_one_line():
    """Fails if a line break splits an exported row, a lone surrogate reaches a tokenizer, or nothing is scored."""
    assert answers.sentence(" 我\t喜欢\r\n北京\x00。\u2028 ", "x") == "我 喜欢 北京 。"
    assert answers.sentence("好\ud83d😀", "x") == "好?😀"
    assert len(answers.sentence("长" * LONGEST, "x")) == LONGEST
    for text, message in (("", "句子一"), (None, "句子一"), (" \n\x00", "句子一"), ("长" * 10_000, "10,000")):
        with pytest.raises(InputError, match=message):
            answers.sentence(text, "句子一")


def test_files_are_read(tmp_path):
    """Fails if a file is read without its quotes, cut without a word, or its error shows the place of an upload."""
    (tmp_path / "p.csv").write_text('text1,text2,score\n"甲,",乙,0.5\n', encoding="utf-8")
    assert answers.read_pairs(str(tmp_path / "p.csv")) == ([["甲,", "乙", "0.5", ""]], False)
    (tmp_path / "p.tsv").write_text("甲\t乙\n" * (MOST_ROWS + 1), encoding="utf-8")
    rows, more = answers.read_pairs(str(tmp_path / "p.tsv"))
    assert len(rows) == MOST_ROWS and more
    (tmp_path / "p.tsv").write_text("a\tb\tc\td\n", encoding="utf-8")
    with pytest.raises(InputError, match="p.tsv, line 1: ") as error:
        answers.read_pairs(str(tmp_path / "p.tsv"))
    assert str(tmp_path) not in str(error.value), "the place of an upload is shown"


def test_what_is_exported_can_be_prepared(tmp_path):
    """Fails if corrected labels cannot be trained on, because a quote, tab or empty row broke the file."""
    rows = [["我喜欢\t北京", '"我爱北京', "1", "0.9"], EMPTY, ["今天\n好", "明天好", "0", ""], ["a", "b", 1.0, ""]]
    link = answers.download(answers.as_tsv(rows))
    content = base64.b64decode(re.search('base64,([^"]+)', link)[1])
    (tmp_path / "pairs.tsv").write_bytes(content)
    assert "--label_kind binary" in link and content.decode().splitlines()[1] == '我喜欢 北京\t"我爱北京\t1'
    words = ["mine", "--source", str(tmp_path / "pairs.tsv"), "--label_kind", "binary", "--output", str(tmp_path / "o")]
    prepare.main(*parse(words, *prepare.ARGUMENTS))
    assert Manifest.load(tmp_path / "o").splits["train"]["rows"] == 3


def test_rows_are_checked():
    """Fails if half a pair, no pair, a flood of them or a label that is no number is scored or exported."""
    for rows, message in (
        ([EMPTY], "1 to 200"),
        ([["甲", "乙", "1", ""]] * 201, "201"),
        *(([EMPTY, ["甲", blank, "1", ""]], "row 2, sentence2") for blank in (" ", "\u200b")),
        *(([EMPTY, ["甲", "乙", label, ""]], "row 2") for label in ("", "similar", "nan", "1e999")),
    ):
        with pytest.raises(InputError, match=message):
            answers.as_tsv(rows)
    found = answers.scored(JUDGE, [["甲", "甲", "1", "old"], EMPTY, ["甲乙", "乙甲", "", ""]])
    assert found == [["甲", "甲", "1", "0.1000"], ["甲乙", "乙甲", "", "0.2000"]]


def test_judges_keep_the_rules_of_their_prompts(tiny_model, tmp_path):
    """Fails if the page gives a verdict by a threshold that was found behind another prompt."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    encoder.save_pretrained(tmp_path)
    for prompt, expected in (("", 1), ("query: ", 0)):
        save_record(tmp_path, {"faq": 0.9}, prompts=(prompt, prompt))
        assert len(Judge.of(str(tmp_path), encoder).rules) == expected


def test_a_missing_library_is_named_at_once(monkeypatch):
    """Fails if a user waits for models to load, and then reads that a library is missing."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"\[demo\]"):
        demo.check(demo.DemoArguments(model="mini"))
