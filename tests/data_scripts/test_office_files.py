"""If these fail, a file as offices keep them is misread, or refused without the way to read it."""

import json

import openpyxl
import pytest

from cosent.data.files import PAIR, FileOptions, open_table
from cosent.demo_page.answers import read_pairs
from cosent.errors import InputError
from cosent.evaluate import read_labelled

BINARY = ("--label_kind", "binary")
PAIRS = [("怎么还款", "如何还款", "1"), ("怎么还款", "怎么借款", "0")]
NAMES = [
    ("句子1", "句子2", "标签"),
    ("文本1", "文本2", "相似"),
    ("问题1", "问题2", "是否相似"),
    ("句子一", "句子二", "分数"),
]


def lines(rows, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def workbook(path, **sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def same_in_every_job(bench, path, *flags):
    """The pairs of a file, which are those of `prepare`, `evaluate`, `similarity` and the page."""
    bench.prepare("mine", "--source", path, *BINARY, "--overwrite", *flags)
    rows = bench.rows()
    split = read_labelled(str(path), None, None, "mine").split("test")
    assert list(zip(split["sentence1"], split["sentence2"], split["label"], strict=True)) == rows
    table = open_table(path, None, PAIR, "--text_columns")
    assert [tuple(row[name] for name in table.sentences) for row in table.rows()] == [row[:2] for row in rows]
    shown, _ = read_pairs(str(path))
    assert [(*row[:2], float(row[2])) for row in shown] == rows
    return rows


def test_chinese_columns_are_known_to_every_job(bench):
    for names in NAMES:
        assert len(same_in_every_job(bench, bench.write("pairs.csv", lines([names, *PAIRS])))) == 2, names


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".xlsx"])
def test_pairs_with_a_label_need_no_header(bench, ending, caplog):
    """The `faq.csv` of the README, which `similarity --pairs` refused."""
    path = bench.folder / f"faq{ending}"
    if ending == ".xlsx":
        workbook(path, Sheet1=[(first, second, int(label)) for first, second, label in PAIRS])
    else:
        bench.write(path.name, lines(PAIRS, "," if ending == ".csv" else "\t"))
    with caplog.at_level("INFO", logger="cosent"):
        assert same_in_every_job(bench, path) == [(*row[:2], float(row[2])) for row in PAIRS]
    assert "first two columns" in caplog.text


def test_words_are_labels(bench, caplog):
    for yes, no in (("是", "否"), ("相似", "不相似"), ("TRUE", "False"), ("yes", "No")):
        rows = [("句子1", "句子2", "标签"), (*PAIRS[0][:2], yes), (*PAIRS[1][:2], no)]
        with caplog.at_level("INFO", logger="cosent"):
            assert [row[2] for row in same_in_every_job(bench, bench.write("pairs.csv", lines(rows)))] == [1.0, 0.0]
        warnings = json.loads((bench.output / "MANIFEST.json").read_text(encoding="utf-8"))["warnings"]
        assert any(f"{yes} as 1 (1 rows), {no} as 0 (1 rows)" in one for one in warnings)
    assert "是 as 1" in caplog.text


def test_booleans_of_json_and_sheets_are_labels(bench):
    text = "".join(json.dumps({"句子1": a, "句子2": b, "标签": y == "1"}) + "\n" for a, b, y in PAIRS)
    assert [row[2] for row in same_in_every_job(bench, bench.write("pairs.jsonl", text))] == [1.0, 0.0]
    rows = [("句子1", "句子2", "标签"), *((a, b, y == "1") for a, b, y in PAIRS)]
    path = workbook(bench.folder / "pairs.xlsx", Sheet1=rows)
    assert [row[2] for row in same_in_every_job(bench, path)] == [1.0, 0.0]


def test_other_labels_are_named_by_a_flag(bench):
    path = bench.write("pairs.csv", lines([(*PAIRS[0][:2], "同义"), (*PAIRS[1][:2], "不同")]))
    flags = ("--source", path, *BINARY)
    assert "--on_bad_rows" not in bench.stops("--label_values", "mine", *flags)
    manifest = bench.prepare("mine", *flags, "--label_values", "不同=0", "同义=1")
    assert [row[2] for row in bench.rows()] == [1.0, 0.0]
    assert any("同义 as 1 (1 rows)" in one for one in manifest["warnings"])
    values = {"不同": "0", "同义": "1"}
    assert list(read_labelled(str(path), None, None, "mine", values=values).labels("test")) == [1.0, 0.0]
    with pytest.raises(InputError, match="不同.*--label_values.*got '2'"):
        path.write_text(path.read_text(encoding="utf-8") + "甲,乙,2\n", encoding="utf-8")
        bench.prepare("mine", *flags, "--label_values", "不同=0", "同义=1", "--overwrite")
    bench.stops("--label_values .*got 0", "mine", *flags, "--label_values", "0", "--overwrite")


def test_nli_classes_are_named_by_a_flag_and_shown_by_name(bench, capsys):
    path = bench.write("pairs.tsv", "甲\t乙\t蕴含\n甲\t丙\t矛盾\n")
    flags = ("--label_values", "蕴含=entailment", "中立=neutral", "矛盾=contradiction")
    bench.prepare("mine", "--source", path, "--label_kind", "nli", *flags)
    assert [row[2] for row in bench.rows()] == [2.0, 0.0]
    assert "contradiction: 1  entailment: 1" in capsys.readouterr().out


def test_a_label_in_front_is_found(bench):
    """Fails if skipping is proposed for a file of which it would leave nothing."""
    path = bench.write("pairs.tsv", "1\t怎么还款\t如何还款\n0\t怎么还款\t怎么借款\n")
    assert "--on_bad_rows" not in bench.stops("line 1: .*--label_column", "mine", "--source", path, *BINARY)
    columns = ("--sentence1_column", "1", "--sentence2_column", "2", "--label_column", "0")
    bench.prepare("mine", "--source", path, *BINARY, *columns)
    assert bench.rows() == [(*row[:2], float(row[2])) for row in PAIRS]


def test_a_sheet_of_queries_is_read(bench):
    rows = [("query", "positive", "negative"), ("甲", "乙", "丙"), ("丁", "戊", None)]
    bench.prepare("mine", "--source", workbook(bench.folder / "a.xlsx", Sheet1=rows))
    assert bench.rows() == [("甲", "乙", 1.0), ("甲", "丙", 0.0), ("丁", "戊", 1.0)]


def test_a_sheet_is_named(bench):
    path = workbook(bench.folder / "a.xlsx", 说明=[("请勿改动",)], 数据=[("句子1", "句子2", "标签"), *PAIRS])
    bench.stops(r"several sheets \(说明, 数据\).*--sheet", "mine", "--source", path, *BINARY)
    bench.stops("--sheet 数: .*说明, 数据", "mine", "--source", path, *BINARY, "--sheet", "数")
    bench.prepare("mine", "--source", path, *BINARY, "--sheet", "数据")
    assert len(bench.rows()) == 2
    assert len(list(open_table(path, None, PAIR, "", options=FileOptions(sheet="数据")).rows())) == 2
    bench.stops(
        "--sheet 数据.*is csv",
        "mine",
        "--source",
        bench.write("a.csv", lines(PAIRS)),
        *BINARY,
        "--sheet",
        "数据",
        "--overwrite",
    )


@pytest.mark.parametrize("header", [True, False])
def test_a_sheet_is_read_by_positions(bench, header):
    rows = [(1, "怎么还款", "如何还款"), (0, "怎么还款", "怎么借款")]
    path = workbook(bench.folder / "a.xlsx", Sheet1=[("同义", "甲", "乙")] * header + rows)
    columns = ("--sentence1_column", "1", "--sentence2_column", "2", "--label_column", "0")
    bench.prepare("mine", "--source", path, *BINARY, *columns, "--header" if header else "--no_header")
    assert bench.rows() == [(*row[:2], float(row[2])) for row in PAIRS]
    if not header:
        assert next(open_table(path, ["1", "2"], PAIR, "").rows())["sentence2"] == "如何还款"


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16"])
def test_other_encodings_are_read(bench, encoding):
    path = bench.write("pairs.csv", lines([NAMES[0], *PAIRS, ("𠮷", "甲\u2028", "1")]).encode(encoding))
    bench.stops(f"line 1: .*UTF-8.*--encoding {encoding}", "mine", "--source", path, *BINARY)
    bench.prepare("mine", "--source", path, *BINARY, "--encoding", encoding)
    assert bench.rows()[0][:2] == PAIRS[0][:2] and bench.rows()[2][0] == "𠮷"
    assert len(read_labelled(str(path), None, None, "mine", FileOptions(encoding=encoding)).split("test")) == 3
    bench.write("bad.csv", lines(PAIRS).encode(encoding) + b"\xff")
    bench.stops("bad.csv", "mine", "--source", bench.folder / "bad.csv", *BINARY, "--encoding", encoding, "--overwrite")


def test_a_row_in_gb18030_is_readable_in_the_error(bench):
    path = bench.write("pairs.csv", lines(PAIRS).encode() + "甲乙,丙丁,1\n".encode("gb18030"))
    bench.stops("line 3: .*UTF-8.*甲乙,丙丁.*甲乙,丙丁,1", "mine", "--source", path, *BINARY)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read(bench, indent):
    rows = [{"句子1": a, "句子2": b, "标签": int(y), "[": '],"\\'} for a, b, y in PAIRS]
    text = json.dumps(rows, ensure_ascii=False, indent=indent)
    path = bench.write("pairs.json", "\ufeff\n" + text + "\n")
    assert len(same_in_every_job(bench, path)) == 2
    for broken in (text[:-1], text[:-1] + ",]", text + "x", text.replace(":", "", 1)):
        bench.stops("pairs.json, line", "mine", "--source", bench.write("pairs.json", broken), *BINARY, "--overwrite")
    rows[1]["标签"] = 7
    bench.write("pairs.json", json.dumps([*rows, 3], ensure_ascii=False, indent=indent))
    found = bench.prepare("mine", "--source", path, *BINARY, "--overwrite", "--on_bad_rows", "skip")["splits"]["train"]
    assert found["rows"] == 1 and [row["line"] for row in found["bad_rows"]] == ([1, 1] if indent is None else [8, 14])


def test_the_separator_is_named(bench):
    for name, separator, remedy in (("a.csv", "\t", "--format tsv"), ("a.tsv", ",", r"\.csv"), ("a.csv", ";", "xlsx")):
        path = bench.write(name, lines(PAIRS, separator))
        bench.stops(remedy, "mine", "--source", path, *BINARY)
        with pytest.raises(InputError, match=remedy):
            open_table(path, None, PAIR, "--text_columns")
