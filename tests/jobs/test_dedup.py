"""Near-duplicates: their groups, the file without them, and sentences that are never merged."""

import gzip
import json

import pytest

from cosent.errors import InputError
from cosent.jobs.dedup import colliding, difference
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import DecisionRule
from tests.conftest import CALIBRATION

LINES = ["怎么还款", "今天天气很好", "怎么还款？", "红色的苹果", "今天天气很好。", "怎么还款", "推荐一辆红车"]


@pytest.fixture
def dedup(tiny_bi, job, tmp_path, monkeypatch):
    """A function that runs the job on `LINES` and returns its lines of stdout, and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")

    def run(*flags, text="faq.txt"):
        words = ["--text", tmp_path / text, "--device", "cpu"]
        printed, said = job("cosent.jobs.dedup", "--model", tiny_bi, *words, *flags)
        return printed.splitlines(), said

    return run


def test_groups_and_the_file_without_duplicates(dedup, tiny_bi, tmp_path):
    """Fails if a sentence that is like no other is lost, or a duplicate stays."""
    lines, errors = dedup("--threshold", 0.99999)
    rows = ["       0  1.0000  怎么还款", "       5  1.0000  怎么还款"]
    assert lines == ["     row  cosine  sentence", "group 1: 2 sentences", *rows]
    same = {"sentences": ["怎么还款"] * 2, "cosines": [1.0, 1.0], "exact": [True, True]}
    assert json.loads(dedup("--threshold", 0.99999, "--json")[0][0]) == {"rows": [0, 5]} | same
    assert "of 7 dropped" in errors and "-> 1.0000            1  怎么还款 / 怎么还款 (1.0000)\n" in errors
    lines = dedup("--threshold", 0.9)[0]
    rows = [(float(row[1]), row[2]) for row in map(str.split, lines[2 : 2 + int(lines[1].split()[2])])]
    cosines = SentenceEncoder.from_pretrained(str(tiny_bi)).similarity(
        [rows[0][1]] * len(rows), [row[1] for row in rows]
    )
    assert [row[0] for row in rows] == pytest.approx(cosines.tolist(), abs=1e-4) and len(rows) > 2
    dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    assert (tmp_path / "unique.txt").read_text(encoding="utf-8").splitlines() == [*LINES[:5], LINES[6]]
    with pytest.raises(InputError, match=r"--output .*unique\.txt exists.*--overwrite"):
        dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    assert dedup("--threshold", -1.0)[0][1] == "group 1: 7 sentences"


def test_what_differs_in_a_number_is_kept_apart(dedup, tmp_path):
    """Fails if 101 and 102 become one group, directly or through a sentence without a number, or nobody is told."""
    lines = ["房间101怎么走", "房间102怎么走", "房间怎么走", "房间101怎么走？"]
    (tmp_path / "rooms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups, said = dedup("--threshold", -1.0, text="rooms.txt")
    assert [line.split()[-1] for line in groups[2:]] == [lines[0], lines[3]]
    assert "kept apart: 3 by number or code" in said and "房间101怎么走 / 房间102怎么走" in said


def test_what_the_model_cannot_tell_apart_is_never_merged(dedup, tmp_path):
    """Fails if orders of persons whose names the tokenizer does not know become one, also through a third sentence."""
    lines = ["陈玙的订单", "陈玕的订单", "陈明的订单", "陈玙的订单", "陈军的订单"]
    (tmp_path / "orders.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups, said = dedup("--threshold", -1.0, text="orders.txt")
    assert [line.split()[0] for line in groups[1:]] == ["group", "0", "3", "group", "2", "4"]
    assert "by character that the model does not know (陈玙的订单 / 陈玕的订单" in said


def test_a_table_keeps_its_rows(dedup, tmp_path):
    """Fails if the answers of a table are lost in the file without duplicates, or with --overwrite in the table."""
    rows = "".join(f"{n},{line},答{n}\n" for n, line in enumerate(LINES))
    (tmp_path / "faq.csv").write_text("id,question,answer\n" + rows, encoding="utf-8")
    flags = ("--threshold", 0.99999, "--text_column", "question")
    dedup(*flags, "--output", tmp_path / "unique.csv", text="faq.csv")
    lines = (tmp_path / "unique.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["id,question,answer", *(row for n, row in enumerate(rows.splitlines()) if n != 5)]
    (tmp_path / "rows.jsonl").write_text('{"question": "好"}\n{"question": "苹果", "id": NaN}\n', encoding="utf-8")
    dedup("--threshold", 0.99999, "--output", tmp_path / "unique.jsonl", text="rows.jsonl")
    assert (tmp_path / "unique.jsonl").read_text(encoding="utf-8").splitlines() == [
        '{"question": "好"}', '{"question": "苹果", "id": null}',
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"--output .*faq\.csv"):
        dedup(*flags, "--overwrite", "--output", tmp_path / "faq.csv", text="faq.csv")


def test_equal_sentences_are_one_at_any_threshold(dedup, tmp_path):
    """Fails if a vector whose product with itself rounds to less than 1 is no duplicate, or .gz is written as text."""
    lines = [f"{text}{n}" for n in range(20) for text in ("怎么还款", "今天天气很好")]
    (tmp_path / "twice.txt").write_text("\n".join([*lines, *lines]) + "\n", encoding="utf-8")
    dedup("--threshold", 1, "--output", tmp_path / "unique.txt.gz", text="twice.txt")
    unique = gzip.decompress((tmp_path / "unique.txt.gz").read_bytes()).decode().splitlines()
    assert unique == lines


def test_a_trained_model_needs_no_threshold(dedup, monkeypatch):
    """Fails if the threshold for merging that training found is not the default, one of several is chosen, or that of
    the verdict takes its place where no cosine is precise enough."""
    rules = {name: DecisionRule(name, 0.5, CALIBRATION, merge_threshold=0.99999) for name in ("faq", "lcqmc")}
    monkeypatch.setattr("cosent.models.decision.decision_rules", lambda model: rules)
    with pytest.raises(InputError, match=r"each of faq, lcqmc.*--threshold"):
        dedup()
    assert dedup("--corpus", "faq")[0] == dedup("--threshold", 0.99999)[0]
    rules["faq"] = DecisionRule("faq", 0.5, CALIBRATION)
    with pytest.raises(InputError, match=r"no cosine .*--threshold, e\.g\. 0\.97"):
        dedup("--corpus", "faq")


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("房间101怎么走", "房间102怎么走", "number or code"),
        ("会员有效期3天", "会员有效期3周", "number or code"),
        ("保修三年吗", "保修两年吗", "number or code"),
        ("iPhone 13 多少钱", "iPhone 14 多少钱", "number or code"),
        ("A10怎么设置", "B10怎么设置", "number or code"),
        ("怎么退款", "怎么退款3次", "number or code"),
        ("订单未发货", "订单已发货", "negation"),
        ("怎么还款", "如何还款", None),
        ("非常慢", "很慢", None),
        ("ＶＩＰ２怎么开", "vip2怎么开", None),
        ("开一个发票", "开发票", None),
        ("无线网络怎么连", "wifi怎么连", "number or code"),
        ("付1,000元怎么退", "付1000元怎么退", None),
        ("付一千元怎么退", "付1000元怎么退", "number or code"),
        ("付一千怎么退", "付两千怎么退", "number or code"),
        ("付3千元", "付3万元", "number or code"),
        ("付0万元", "付1万元", "number or code"),
        ("一亿两千万元", "一亿两千零五十万元", "number or code"),
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


# Two wordings of one question or statement, all with the same answer to "negated or not".
SAME = """
花呗能分期吗 花呗能分期不
花呗有分期吗 花呗有分期没
花呗能分期吗 花呗能分期没有
花呗能分期吗 花呗能不能分期
花呗能分期吗 花呗能分期不？
花呗能分期吗，怎么分 花呗能分期不，怎么分
花呗可以提前还款吗 花呗可不可以提前还款
花呗可以提前还款吗 花呗可以不可以提前还款
花呗还没还会怎么样 花呗没还会怎么样
怎么一次性还清花呗 怎么把花呗全部还清
发货了吗 发货了没
发货了吗 发货了没有
发货了吗 发货了还没
发货了吗 发货了没有啊
你吃饭了吗 你吃饭了没呢
有优惠吗 有没有优惠
有优惠吗 有没优惠
支持花呗吗 支不支持花呗
支持花呗吗 支持不支持花呗
喜欢喝茶吗 喜不喜欢喝茶
是正品吗 是不是正品
这样行吗 这样行不行
这样行吗 这样行不
要押金吗 要不要押金
要押金吗 要押金不
快递到了吗 快递到没到
这个很好 这个不错
很贵 非常贵
和上次一样 和上次没什么不一样
为什么总是断线 为什么不断断线
无论多少都行 多少都行
不管多少都行 多少都行
必须实名 不得不实名
不能不还 必须还
不是不能退 能退
有点贵 有一点贵
贵点儿行吗 贵一点儿行吗
一块儿去 一起去
别的颜色有吗 其他颜色有吗
无线网怎么连 网怎么连
"""
NEGATED = """
能退 不能退
发货了 没发货
发货了 还没发货
花呗还了会怎么样 花呗还没还会怎么样
我有余额 我没有余额
余额有 余额都没有
我还有 我没有
他会去 他从不去
这个够 这个不够
已激活 未激活
支持无理由退 不支持无理由退
可以改 不可以改
到账了 没到账
登录了 没登录，怎么办
需要押金 不需要押金
请点这里 请勿点这里
发短信 别发短信
快递到了 快递没到
我去，你呢 我不去，你呢
有密码 没密码
"""


def pairs_of(table: str) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in table.strip().splitlines()]


@pytest.mark.parametrize(("table", "reason"), [(SAME, None), (NEGATED, "negation")])
def test_chinese_questions_are_no_negations(table, reason):
    """Fails if a question that ends in 不, 没 or 没有 is kept apart from its other wording, or a negation is merged."""
    pairs = pairs_of(table)
    assert len(pairs_of(SAME)) + len(pairs_of(NEGATED)) == 60
    wrong = [pair for pair in pairs if difference(*pair) != reason or difference(*pair[::-1]) != reason]
    assert not wrong


def test_rows_of_a_file(tiny_model, monkeypatch):
    """Fails if a third text hides that two collide, or chunks are compared each by itself."""
    monkeypatch.setattr("cosent.jobs.dedup.CHUNK", 2)
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    lines = ["陈玙ABC", "怎么还款", "陈玙abc", "怎么还款", "陳玕abc", "怎麼还款", "陈玕abc"]
    assert colliding(encoder, lines) == dict.fromkeys([0, 2], "陈玙abc") | dict.fromkeys([4, 6], "陈玕abc")


def test_texts_that_differ_behind_the_maximum_length(tiny_model):
    """Fails if two long texts are merged though the model has not read where they differ."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=64)
    texts = ["好" * 100 + "天", "好" * 100 + "地"]
    assert colliding(encoder, texts) == {0: texts[0], 1: texts[1]}
    assert colliding(encoder, [text[50:] for text in texts]) == {}
