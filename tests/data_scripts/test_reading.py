"""If these fail, sound files of some office, editor, publisher or platform are misread, or refused without a remedy."""

import csv
import gzip
import io
import itertools
import json

import openpyxl
import pytest

from cosent.data.files import PAIR, FileOptions, open_table
from cosent.errors import InputError
from cosent.jobs.evaluate import read_labelled

PAIRS = [("怎么还款", "如何还款", "1"), ("怎么还款", "怎么借款", "0")]
NAMES = [
    ("句子1", "句子2", "标签"),
    ("文本1", "文本2", "相似"),
    ("问题1", "问题2", "是否相似"),
    ("句子一", "句子二", "分数"),
]


def lines(rows, separator=","):
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def same_in_every_job(bench, path):
    """The pairs of a file, which are those of `prepare`, `evaluate` and `similarity`."""
    bench.binary(path)
    rows = bench.rows()
    split = read_labelled(str(path), None, None, "mine").split("test")
    assert list(zip(split["sentence1"], split["sentence2"], split["label"], strict=True)) == rows
    table = open_table(path, None, PAIR, "--text_columns")
    assert [tuple(row[name] for name in table.sentences) for row in table.rows()] == [row[:2] for row in rows]
    return rows


@pytest.mark.parametrize("names", NAMES)
def test_chinese_columns_are_known_to_every_job(bench, names):
    assert len(same_in_every_job(bench, bench.write("pairs.csv", lines([names, *PAIRS])))) == 2


@pytest.mark.parametrize("ending", ["csv", "tsv", "xlsx"])
def test_pairs_with_a_label_need_no_header(bench, ending):
    """The `faq.csv` of the README, which `similarity --pairs` refused."""
    if ending == "xlsx":
        path = bench.workbook(Sheet1=[(first, second, int(label)) for first, second, label in PAIRS])
    else:
        path = bench.write(f"faq.{ending}", lines(PAIRS, "," if ending == "csv" else "\t"))
    assert same_in_every_job(bench, path) == [(*row[:2], float(row[2])) for row in PAIRS]


@pytest.mark.parametrize(("yes", "no"), [("是", "否"), ("相似", "不相似"), ("TRUE", "False"), ("yes", "No")])
def test_words_are_labels(bench, yes, no):
    rows = [NAMES[0], (*PAIRS[0][:2], yes), (*PAIRS[1][:2], no)]
    assert [row[2] for row in same_in_every_job(bench, bench.write("pairs.csv", lines(rows)))] == [1.0, 0.0]
    warnings = json.loads((bench.output / "MANIFEST.json").read_text(encoding="utf-8"))["warnings"]
    assert any(f"{yes} as 1 (1 rows), {no} as 0 (1 rows)" in one for one in warnings)


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


def test_other_labels_are_named_by_a_flag(bench, capsys):
    path = bench.write("pairs.csv", lines([(*PAIRS[0][:2], "同义"), (*PAIRS[1][:2], "不同")]))
    assert "--on_bad_rows" not in bench.refuses("--label_values", path), "skipping would leave nothing"
    flags = ("--label_values", "不同=0", "同义=1")
    manifest = bench.binary(path, *flags)
    assert [row[2] for row in bench.rows()] == [1.0, 0.0]
    assert any("同义 as 1 (1 rows)" in one for one in manifest["warnings"])
    path.write_text(path.read_text(encoding="utf-8") + "甲,乙,2\n", encoding="utf-8")
    bench.refuses("不同.*--label_values.*got '2'", path, *flags)
    bench.refuses("--label_values .*got 0", path, "--label_values", "0")
    path = bench.write("pairs.tsv", "甲\t乙\t蕴含\n甲\t丙\t矛盾\n")
    flags = ("--label_values", "蕴含=entailment", "中立=neutral", "矛盾=contradiction")
    bench.prepare("mine", "--source", path, "--label_kind", "nli", *flags)
    assert [row[2] for row in bench.rows()] == [2.0, 0.0]
    assert "contradiction: 1  entailment: 1" in capsys.readouterr().out


def test_a_sheet_is_named_and_may_have_gaps(bench):
    path = bench.workbook(说明=[("请勿改动",)], 数据=[NAMES[0], *PAIRS, ("庚", None, 0)])
    bench.refuses(r"说明, 数据.*--sheet", path)
    bench.refuses("说明, 数据.*--sheet", path, "--sheet", "数")
    bench.refuses("pairs.xlsx, row 4: .*sentence2, got None", path, "--sheet", "数据")
    bench.binary(path, "--sheet", "数据", "--on_bad_rows", "skip")
    assert len(bench.rows()) == 2
    bench.refuses("--sheet 数据.*is csv", bench.write("a.csv", lines(PAIRS)), "--sheet", "数据")


ROWS = [
    ("问题1", "问题2", "标签"),
    ('他说"好"', '"你好"是什么', 1),
    ("上\n下", "a, b", 0),
    ('"全"', '15"的\t屏', 1),
    ("无", "有", 0),
]
QUOTED = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC)


@pytest.mark.parametrize("quoting", QUOTED)
@pytest.mark.parametrize(
    "rows", [ROWS, [*ROWS[:1], ("甲", "乙", 1), ("丙", "a, b", 0)], [("甲", "乙", 1), ("丙", "丁", 0)]]
)
def test_quoted_tsv_is_read_as_its_writer_meant_it(bench, rows, quoting):
    """Fails if the quotes that pandas and Excel write around texts become part of them."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", quoting=quoting, lineterminator="\r\n").writerows(rows)
    expected = [(first, second, float(label)) for first, second, label in rows if label != "标签"]
    assert same_in_every_job(bench, bench.write("pairs.tsv", text.getvalue())) == expected


@pytest.mark.parametrize("first", ['"好', '好"', '"好"', '"好"吗', '15"的', '他说"好"', '"', '"a", b', '"甲""'])
def test_quotes_of_texts_stay_in_tsv(bench, first, caplog):
    """Fails if a quote that somebody typed is lost, or swallows the rows behind it."""
    rows = [(first, '好"', 1.0), ("上", "下", 0.0), ("左", "右", 1.0)]
    assert same_in_every_job(bench, bench.write("pairs.tsv", lines(rows, "\t"))) == rows
    mixed = bench.write("mixed.tsv", 'a\t"他说""好"""\t1\n' + lines(rows, "\t"))
    with caplog.at_level("WARNING"):
        assert same_in_every_job(bench, mixed) == [("a", '"他说""好"""', 1.0), *rows]
    assert "mixed.tsv: line 1 " in caplog.text


def test_error_cells_are_no_sentences(bench):
    """Fails if #N/A of a spreadsheet trains as a sentence, or one in another column costs its row."""
    rows = [
        (*NAMES[0], "备注"),
        *((*PAIRS[i % 2][:2], i % 2, "#REF!") for i in range(2)),
        ("#N/A", "甲", 0, ""),
        ("甲", "乙", "#DIV/0!", ""),
    ]
    path = bench.workbook(Sheet1=rows)
    book = openpyxl.load_workbook(path)
    for row in book["Sheet1"].iter_rows():
        for cell in row:
            cell.data_type = "e" if str(cell.value).startswith("#") else cell.data_type
    book.save(path)
    bench.refuses("pairs.xlsx, row 4: .*sentence1, got '#N/A'", path)
    found = bench.binary(path, "--on_bad_rows", "skip")["splits"]["train"]
    assert [row["line"] for row in found["bad_rows"]] == [4, 5] and len(bench.rows()) == 2
    with pytest.raises(InputError, match="row 4: .*问题1|row 4: .*got '#N/A'"):
        list(open_table(path, None, PAIR, "--text_columns").rows())


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "utf-16"])
def test_other_encodings_are_read(bench, encoding):
    written = "gb18030" if encoding == "gbk" else encoding  # what calls itself GBK may hold more
    path = bench.write("pairs.csv", lines([NAMES[0], *PAIRS, ("𠮷", "甲\u2028", "1")]).encode(written))
    bench.refuses(f"line 1: .*UTF-8.*--encoding .*{written}", path)
    bench.binary(path, "--encoding", encoding)
    assert bench.rows()[0][:2] == PAIRS[0][:2] and bench.rows()[2][0] == "𠮷"
    assert len(read_labelled(str(path), None, None, "mine", FileOptions(encoding=written)).split("test")) == 3
    bench.refuses("bad.csv", bench.write("bad.csv", lines(PAIRS).encode(written) + b"\xff"), "--encoding", encoding)


@pytest.mark.parametrize(("indent", "places"), [(None, [2, 2]), (2, [9, 15])])
def test_items_of_a_json_array_have_lines(bench, indent, places):
    rows = [dict(zip(NAMES[0], row, strict=True)) | {"[": '],"\\'} for row in (*PAIRS[:1], ("甲", "乙", 7))]
    text = json.dumps([*rows, 3], ensure_ascii=False, indent=indent)
    path = bench.write("pairs.json", "\ufeff\n" + text + "\n")
    found = bench.binary(path, "--on_bad_rows", "skip")["splits"]["train"]
    assert found["rows"] == 1 and [row["line"] for row in found["bad_rows"]] == places
    for broken in (text[:-1], text[:-1] + ",]", text + "x", text.replace(":", "", 1)):
        bench.refuses("pairs.json, line", bench.write("pairs.json", broken))


def test_editors_and_platforms_read_alike(bench):
    """Fails if a byte order mark, a line end or an odd space tears a row or becomes part of a sentence."""
    for mark, end, last in itertools.product((b"", b"\xef\xbb\xbf"), ("\n", "\r\n"), (True, False)):
        text = end.join(["今天晴\t今天是晴天\t1", "甲\t乙\t0"]) + (end if last else "")
        bench.binary(bench.write("pairs.tsv", mark + text.encode()))
        assert bench.rows() == [("今天晴", "今天是晴天", 1.0), ("甲", "乙", 0.0)], (mark, end, last)
    odd = [f"左{character}右" for character in '\u2028\x0b\x0c\x1c\x85"\ufeff']
    bench.binary(bench.write("pairs.tsv", "".join(f"  {text} \t乙\t1\n" for text in odd)))
    assert bench.rows() == [(text, "乙", 1.0) for text in odd]
    bench.write("gz/train.tsv.gz", gzip.compress("甲\t乙\t1\n\n丙\t丁\t0\n\n".encode()))
    manifest = bench.binary(bench.folder / "gz")
    assert bench.rows() == [("甲", "乙", 1.0), ("丙", "丁", 0.0)]
    assert manifest["splits"]["train"]["left_out"] == {"blank line": 2}


def test_pawsx_in_its_publishers_format(bench):
    header = "id\tsentence1\tsentence2\tlabel\n"
    bench.write("x-final/zh/translated_train.tsv", header + '1\t"甲" 公司\t乙\t1\n')
    bench.write("x-final/zh/dev_2k.tsv", header + "1\tNS\t乙\t0\n")
    manifest = bench.prepare("pawsx", "--source", bench.folder)
    assert bench.rows() == [('"甲" 公司', "乙", 1.0)]
    assert manifest["absent_splits"] == ["test"] and manifest["max_length"] == {"bi_encoder": 128, "cross_encoder": 256}


def test_nli_files_of_their_publishers(bench):
    """Fails if rows without a gold label train, classes change their order, or files of the CNSD are not found."""
    rows = [("甲", "乙", "entailment"), ("甲", "丙", "-"), ("甲", "丁", "contradiction"), ("甲", "戊", "neutral")]
    for key in ("gold_label", "label"):
        text = [json.dumps({"sentence1": a, "sentence2": b, key: c, "id": 1}) for a, b, c in rows]
        bench.write("ocnli/train.10k.json", "\n".join(text))
        manifest = bench.prepare("ocnli", "--source", bench.folder)
        assert [row[2] for row in bench.rows()] == [2.0, 0.0, 1.0]  # entailment ranks highest
        assert manifest["splits"]["train"]["left_out"] == {"no gold label (-)": 1}
        assert any("50,437" in warning for warning in manifest["warnings"])
    for name in ("train", "dev_matched", "dev_mismatched"):
        bench.write(f"mnli/cnsd_multil_{name}.jsonl", text[-1])
    manifest = bench.prepare("cmnli", "--source", bench.folder / "mnli")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == {"train": 1, "validation": 2}


def test_nli_joins_its_parts_and_says_what_it_did(bench):
    """Fails if dev.txt, which names no corpus, is in NLI three times, or SNLI is prepared under OCNLI's name."""
    for name in ("ocnli/train", "ocnli/dev", "snli_zh/dev", "snli_zh/test", "cmnli/dev"):
        bench.write(f"{name}.txt", f"{name}\t乙\tneutral\n")
    bench.write("train.txt", "甲\t乙\tneutral\n")
    manifest = bench.prepare("nli", "--source", bench.folder)
    assert {row[0] for row in bench.rows()} == {"ocnli/train", "snli_zh/dev", "snli_zh/test", "cmnli/dev"}
    assert [row[0] for row in bench.rows("validation")] == ["ocnli/dev"]
    assert manifest["absent_splits"] == ["test"]
    for words in ("OCNLI dev", "snli_zh train"):
        assert any(words in warning for warning in manifest["warnings"])
    bench.stops("No file of ocnli .*dev.txt", "ocnli", "--source", bench.folder / "snli_zh")
