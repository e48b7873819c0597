"""If these fail, a file as offices keep them is misread, or refused without the way to read it."""

import json

import pytest

from cosent.data.files import PAIR, FileOptions, open_table
from cosent.demo_page.page import read_pairs
from cosent.errors import InputError
from cosent.evaluate import read_labelled

PAIRS = [("怎么还款", "如何还款", "1"), ("怎么还款", "怎么借款", "0")]
NAMES = [
    ("句子1", "句子2", "标签"),
    ("文本1", "文本2", "相似"),
    ("问题1", "问题2", "是否相似"),
    ("句子一", "句子二", "分数"),
]
COLUMNS = ("--sentence1_column", "1", "--sentence2_column", "2", "--label_column", "0")


def lines(rows, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def same_in_every_job(bench, path):
    """The pairs of a file, which are those of `prepare`, `evaluate`, `similarity` and the page."""
    bench.binary(path)
    rows = bench.rows()
    split = read_labelled(str(path), None, None, "mine").split("test")
    assert list(zip(split["sentence1"], split["sentence2"], split["label"], strict=True)) == rows
    table = open_table(path, None, PAIR, "--text_columns")
    assert [tuple(row[name] for name in table.sentences) for row in table.rows()] == [row[:2] for row in rows]
    shown, _ = read_pairs(str(path))
    assert [(*row[:2], float(row[2])) for row in shown] == rows
    return rows


@pytest.mark.parametrize("names", NAMES)
def test_chinese_columns_are_known_to_every_job(bench, names):
    assert len(same_in_every_job(bench, bench.write("pairs.csv", lines([names, *PAIRS])))) == 2


@pytest.mark.parametrize("ending", ["csv", "tsv", "xlsx"])
def test_pairs_with_a_label_need_no_header(bench, ending, caplog):
    """The `faq.csv` of the README, which `similarity --pairs` refused."""
    if ending == "xlsx":
        path = bench.workbook(Sheet1=[(first, second, int(label)) for first, second, label in PAIRS])
    else:
        path = bench.write(f"faq.{ending}", lines(PAIRS, "," if ending == "csv" else "\t"))
    with caplog.at_level("INFO", logger="cosent"):
        assert same_in_every_job(bench, path) == [(*row[:2], float(row[2])) for row in PAIRS]
    assert "first columns" in caplog.text


@pytest.mark.parametrize(("yes", "no"), [("是", "否"), ("相似", "不相似"), ("TRUE", "False"), ("yes", "No")])
def test_words_are_labels(bench, caplog, yes, no):
    rows = [NAMES[0], (*PAIRS[0][:2], yes), (*PAIRS[1][:2], no)]
    with caplog.at_level("INFO", logger="cosent"):
        assert [row[2] for row in same_in_every_job(bench, bench.write("pairs.csv", lines(rows)))] == [1.0, 0.0]
    warnings = json.loads((bench.output / "MANIFEST.json").read_text(encoding="utf-8"))["warnings"]
    assert any(f"{yes} as 1 (1 rows), {no} as 0 (1 rows)" in one for one in warnings) and "是 as 1" in caplog.text


@pytest.mark.parametrize("ending", ["jsonl", "json", "xlsx"])
def test_booleans_are_labels(bench, ending):
    rows = [(first, second, label == "1") for first, second, label in PAIRS]
    objects = [dict(zip(NAMES[0], row, strict=True)) for row in rows]
    if ending == "xlsx":
        path = bench.workbook(Sheet1=[NAMES[0], *rows])
    else:
        text = json.dumps(objects, indent=2) if ending == "json" else "\n".join(map(json.dumps, objects))
        path = bench.write(f"pairs.{ending}", text)
    assert [row[2] for row in same_in_every_job(bench, path)] == [1.0, 0.0]


def test_other_labels_are_named_by_a_flag(bench):
    path = bench.write("pairs.csv", lines([(*PAIRS[0][:2], "同义"), (*PAIRS[1][:2], "不同")]))
    assert "--on_bad_rows" not in bench.refuses("--label_values", path), "skipping would leave nothing"
    flags = ("--label_values", "不同=0", "同义=1")
    manifest = bench.binary(path, *flags)
    assert [row[2] for row in bench.rows()] == [1.0, 0.0]
    assert any("同义 as 1 (1 rows)" in one for one in manifest["warnings"])
    values = {"不同": "0", "同义": "1"}
    assert list(read_labelled(str(path), None, None, "mine", values=values).labels("test")) == [1.0, 0.0]
    path.write_text(path.read_text(encoding="utf-8") + "甲,乙,2\n", encoding="utf-8")
    bench.refuses("不同.*--label_values.*got '2'", path, *flags)
    bench.refuses("--label_values .*got 0", path, "--label_values", "0")


def test_nli_classes_are_named_by_a_flag_and_shown_by_name(bench, capsys):
    path = bench.write("pairs.tsv", "甲\t乙\t蕴含\n甲\t丙\t矛盾\n")
    flags = ("--label_values", "蕴含=entailment", "中立=neutral", "矛盾=contradiction")
    bench.prepare("mine", "--source", path, "--label_kind", "nli", *flags)
    assert [row[2] for row in bench.rows()] == [2.0, 0.0]
    assert "contradiction: 1  entailment: 1" in capsys.readouterr().out


def test_a_label_in_front_is_read_by_position(bench):
    rows = [(label, first, second) for first, second, label in PAIRS]
    path = bench.write("pairs.tsv", lines(rows, "\t"))
    assert "--on_bad_rows" not in bench.refuses("line 1: .*--label_column", path), "skipping would leave nothing"
    bench.binary(path, *COLUMNS)
    assert bench.rows() == [(*row[:2], float(row[2])) for row in PAIRS]
    for first, header in (([], "--no_header"), ([("同义", "甲", "乙")], "--header")):
        bench.binary(bench.workbook(Sheet1=first + rows), *COLUMNS, header)
        assert bench.rows() == [(*row[:2], float(row[2])) for row in PAIRS]


def test_a_sheet_of_queries_is_read(bench):
    rows = [("query", "positive", "negative"), ("甲", "乙", "丙"), ("丁", "戊", None)]
    bench.prepare("mine", "--source", bench.workbook(Sheet1=rows))
    assert bench.rows() == [("甲", "乙", 1.0), ("甲", "丙", 0.0), ("丁", "戊", 1.0)]


def test_a_sheet_is_named(bench):
    path = bench.workbook(说明=[("请勿改动",)], 数据=[NAMES[0], *PAIRS])
    bench.refuses(r"several sheets \(说明, 数据\).*--sheet", path)
    bench.refuses("--sheet 数: .*说明, 数据", path, "--sheet", "数")
    bench.binary(path, "--sheet", "数据")
    assert len(bench.rows()) == len(list(open_table(path, None, PAIR, "", options=FileOptions("数据")).rows())) == 2
    bench.refuses("--sheet 数据.*is csv", bench.write("a.csv", lines(PAIRS)), "--sheet", "数据")


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16"])
def test_other_encodings_are_read(bench, encoding):
    path = bench.write("pairs.csv", lines([NAMES[0], *PAIRS, ("𠮷", "甲\u2028", "1")]).encode(encoding))
    bench.refuses(f"line 1: .*UTF-8.*--encoding {encoding}", path)
    bench.binary(path, "--encoding", encoding)
    assert bench.rows()[0][:2] == PAIRS[0][:2] and bench.rows()[2][0] == "𠮷"
    assert len(read_labelled(str(path), None, None, "mine", FileOptions(encoding=encoding)).split("test")) == 3
    bench.refuses("bad.csv", bench.write("bad.csv", lines(PAIRS).encode(encoding) + b"\xff"), "--encoding", encoding)


def test_a_row_in_gb18030_is_readable_in_the_error(bench):
    path = bench.write("pairs.csv", lines(PAIRS).encode() + "甲乙,丙丁,1\n".encode("gb18030"))
    bench.refuses("line 3: .*UTF-8.*甲乙,丙丁.*甲乙,丙丁,1", path)


@pytest.mark.parametrize(("indent", "places"), [(None, [2, 2]), (2, [9, 15])])
def test_items_of_a_json_array_have_lines(bench, indent, places):
    rows = [dict(zip(NAMES[0], row, strict=True)) | {"[": '],"\\'} for row in (*PAIRS[:1], ("甲", "乙", 7))]
    text = json.dumps([*rows, 3], ensure_ascii=False, indent=indent)
    path = bench.write("pairs.json", "\ufeff\n" + text + "\n")
    found = bench.binary(path, "--on_bad_rows", "skip")["splits"]["train"]
    assert found["rows"] == 1 and [row["line"] for row in found["bad_rows"]] == places
    for broken in (text[:-1], text[:-1] + ",]", text + "x", text.replace(":", "", 1)):
        bench.refuses("pairs.json, line", bench.write("pairs.json", broken))


@pytest.mark.parametrize(
    ("name", "separator", "remedy"),
    [("a.csv", "\t", "--format tsv"), ("a.tsv", ",", r"\.csv"), ("a.csv", ";", "xlsx")],
)
def test_the_separator_is_named(bench, name, separator, remedy):
    path = bench.write(name, lines(PAIRS, separator))
    bench.refuses(remedy, path)
    with pytest.raises(InputError, match=remedy):
        open_table(path, None, PAIR, "--text_columns")
