"""If these fail, sound files of some office, editor, publisher or platform are misread, or refused without a remedy."""

import csv
import gzip
import io
import itertools
import json
import re

import openpyxl
import pytest

from cosent.data.files import PAIR, SENTENCE, open_table, read_texts
from cosent.data.formats import FileOptions
from cosent.errors import InputError
from cosent.jobs.evaluate import EvaluateArguments, read_labelled

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
    split = read_labelled(EvaluateArguments(pairs=str(path)), "mine").split("test")
    assert list(zip(split["sentence1"], split["sentence2"], split["label"], strict=True)) == rows
    table = open_table(path, None, PAIR, "--text_columns")
    assert [tuple(row[name] for name in table.sentences) for row in table.rows()] == [row[:2] for row in rows]
    return rows


@pytest.mark.parametrize("names", [*NAMES, None])
def test_chinese_columns_are_known_to_every_job(bench, names):
    """Fails if one job reads other columns than the others, or `faq.csv` without a header, as in README, is refused."""
    path = bench.write("pairs.csv", lines([*([names] if names else []), *PAIRS]))
    assert same_in_every_job(bench, path) == [(*row[:2], float(row[2])) for row in PAIRS]


@pytest.mark.parametrize(("yes", "no"), [("是", "否"), ("相似", "不相似"), ("相同", "不同"), ("TRUE", "No")])
def test_words_are_labels(bench, yes, no):
    rows = [NAMES[0], (*PAIRS[0][:2], yes), (*PAIRS[1][:2], no)]
    assert [row[2] for row in same_in_every_job(bench, bench.write("pairs.csv", lines(rows)))] == [1.0, 0.0]
    warnings = json.loads((bench.output / "MANIFEST.json").read_text(encoding="utf-8"))["warnings"]
    assert any(f"{yes} as 1 (1 rows), {no} as 0 (1 rows)" in one for one in warnings)


@pytest.mark.parametrize("ending", ["jsonl", "xlsx"])
def test_booleans_are_labels(bench, ending):
    rows = [(first, second, label == "1") for first, second, label in PAIRS]
    objects = [dict(zip(NAMES[0], row, strict=True)) for row in rows]
    path = bench.write("pairs.jsonl", "\n".join(map(json.dumps, objects)))
    path = path if ending == "jsonl" else bench.workbook(Sheet1=[NAMES[0], *rows])
    assert [row[2] for row in same_in_every_job(bench, path)] == [1.0, 0.0]


def test_other_labels_are_named_by_a_flag(bench, capsys):
    path = bench.write("pairs.csv", lines([(*PAIRS[0][:2], "同义"), (*PAIRS[1][:2], "否"), ("甲", "乙", -0.0)]))
    assert "--on_bad_rows" not in bench.refuses("--label_values", path), "skipping would leave nothing"
    flags = ("--label_values", "异义=0", "同义=1")
    manifest = bench.binary(path, *flags)  # the words that are known stay known
    assert [str(row[2]) for row in bench.rows()] == ["1.0", "0.0", "0.0"]
    assert any("同义 as 1 (1 rows)" in one for one in manifest["warnings"])
    path.write_text(path.read_text(encoding="utf-8") + "甲,乙,2\n", encoding="utf-8")
    bench.refuses("0 or 1, got '2'", path, *flags)
    bench.refuses("同义, 2 .--label_values.*got '-0.0'", path, "--label_values", "同义=1", "2=0")  # 0 may be forgotten
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


QUOTED = (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
TEXTS = [('他说"好"', '"你好"是什么', 1), ("甲", '"全"', 0)]


@pytest.mark.parametrize("quoting", QUOTED)
def test_tsv_that_a_spreadsheet_quoted_is_refused(bench, quoting):
    """Fails if the quotes that pandas and Excel write around texts become part of them."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", quoting=quoting).writerows([NAMES[2], *TEXTS])
    for content in (text.getvalue(), text.getvalue().partition("\n")[2]):
        path = bench.write("pairs.tsv", content)
        bench.refuses(r"pairs.tsv, line [12]: .*quotes as a spreadsheet.*\.csv", path)
        with pytest.raises(InputError, match=r"pairs.tsv, line [12]: .*\.csv"):
            list(open_table(path, None, PAIR, "--text_columns").rows())
        assert same_in_every_job(bench, path.rename(bench.folder / "pairs.csv"))[0] == TEXTS[0]


def test_quotes_of_texts_stay_in_tsv(bench):
    """Fails if a quote that somebody typed is lost, or swallows the rows behind it."""
    texts = ['"好', '好"', '"好"吗', '15"的', '他说"好"', '"', '"a", b', '"甲""', '"好"']
    rows = [(first, '好"', float(number % 2)) for number, first in enumerate(texts)]
    assert same_in_every_job(bench, bench.write("pairs.tsv", lines(rows, "\t"))) == rows
    assert same_in_every_job(bench, bench.write("pairs.tsv", lines(rows[:0:-1], "\t"))) == rows[:0:-1]


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


@pytest.mark.parametrize("encoding", ["gb18030", "gbk", "utf-16-le"])
def test_other_encodings_are_read(bench, encoding):
    """Fails if what Excel saves needs an editor first, or an error does not name the flag that reads it."""
    written = "gb18030" if encoding == "gbk" else encoding  # what calls itself GBK may hold more
    text, flag = lines([NAMES[0], *PAIRS, ("𠮷", "甲\u2028", "1")]), encoding.removesuffix("-le")
    path = bench.write("pairs.csv", text.encode(written))
    error = bench.refuses(f"line 1: .*UTF-8.*--encoding {written.removesuffix('-le')}", path)
    assert "--header" not in error and "--on_bad_rows" not in error and "udc" not in error
    bench.binary(path, "--encoding", flag)
    assert bench.rows()[0][:2] == PAIRS[0][:2] and bench.rows()[2][0] == "𠮷"
    options = FileOptions(encoding="gb18030" if encoding == "gbk" else flag)
    assert len(read_labelled(EvaluateArguments(pairs=str(path), encoding=flag), "mine").split("test")) == 3
    assert next(open_table(path, ["句子1"], SENTENCE, "", options=options).texts()) == PAIRS[0][0]
    bench.refuses("bad.csv", bench.write("bad.csv", text.encode(written) + b"\xff"), "--encoding", flag)
    bench.write("pairs.csv", ("\ufeff" + text).encode(written))
    bench.binary(path)
    assert len(bench.rows()) == 3, "a byte order mark needs no flag"


@pytest.mark.parametrize("separator", ";\t")
def test_columns_are_separated_as_in_line_1(bench, separator):
    """Fails if whole lines of Excel's CSV, the header included, are sentences."""
    path = bench.write("faq.csv", "\ufeff" + lines([("问句", "答案"), ("怎么还款", '"好; 再见"')], separator))
    assert list(read_texts([path])) == ["怎么还款"]
    assert list(open_table(path, ["答案"], SENTENCE, "--text_column").texts()) == ["好; 再见"]
    assert len(same_in_every_job(bench, bench.write("pairs.csv", lines([NAMES[0], *PAIRS], separator)))) == 2


def title(bench):
    return bench.workbook(Sheet1=[("客服问句标注（第二批）",), NAMES[0], *PAIRS])


def merged(bench):
    return bench.workbook(Sheet1=[NAMES[0], PAIRS[0], (None, *PAIRS[1][1:])])


def really_xlsx(bench):
    return title(bench).rename(bench.folder / "pairs.csv")


OBJECTS = [dict(zip(NAMES[0], row, strict=True)) for row in PAIRS]
GRADED, NLI = ("--label_kind", "graded", "--label_max", "100"), ("--label_kind", "nli")
FAULTS = [  # file, flags, the place, and what the last line of the error advises
    (title, (), "line 1: expected, each once", "If it is a title, delete its row"),
    (merged, (), "row 3: expected text in sentence1", r"only the first has the value\.$"),
    (really_xlsx, (), "pairs.csv is a workbook", r"Rename it to \.xlsx"),
    (("a.jsonl", "\n".join(map(json.dumps, OBJECTS)).replace('"1"', "[1]")), (), "line 1", "Write a number or a word"),
    (("a.jsonl", '{"sentence1": {"text": "甲"}, "sentence2": "乙", "label": 1}'), (), "line 1", "Write one text there"),
    (("a.json", json.dumps(OBJECTS)), (), "line 1: .*a list", r"one object per line.*\.\[\]"),
    (("a.json", json.dumps(OBJECTS, indent=1)), (), "line 1: ", "one object per line"),
    (("a.json", json.dumps({"v": 1, "data": OBJECTS}, indent=1)), (), "line 1: ", r"one object per line.*\.data\[\]"),
    (("a.tsv", '甲\t乙\t1\n"怎么\t还"\t丙\t1\n'), (), "line 2: .*3 columns, got 4", r"quotes.*\.csv"),
    (("a.csv", "甲,乙,1\n甲,乙,丙,1\n"), (), "line 2: .*3 columns, got 4", "separator in it into quotes"),
    (("a.csv", "甲,乙,1\n" + "很急" * 70000 + ",乙,1\n"), (), "line 2: .*131072", "Correct"),
    (("a.csv", "甲,乙,1\r丙,丁,0\r"), (), "line 1: .*new-line", "Correct"),
    (("a.csv", "句子1,句子2,分数\n甲,乙,90%\n"), GRADED, "line 2: .*'90%'", "without the sign"),
    (("a.csv", "句子1,句子2,分数\n甲,乙,120\n"), GRADED, "line 2: .*'120'", "--label_max"),
    (("a.csv", "句子1,句子2,标签\n甲,乙,0\n"), NLI, "line 2: .*'0'", "0=entailment 1=neutral 2=contradiction"),
    (("a.csv", "句子1,句子2,标签\n甲,乙,蕴含\n"), NLI, "line 2: .*'蕴含'", "--label_values 蕴含=entailment"),
    (("a.csv", "句子1,句子2,标签\n甲,乙,同义\n"), (), "line 2: .*'同义'", "--label_values 同义=1"),
    (("a.csv", "q1,q2,same\n甲,乙,1\n"), (), "line 1: .*'same'", "line 1 is a header, pass --header"),
]


@pytest.mark.parametrize(("file", "flags", "place", "remedy"), FAULTS)
def test_the_remedy_is_that_of_the_fault(bench, file, flags, place, remedy):
    """Fails if the last line of an error, which users follow, advises on another problem."""
    path = bench.write(*file) if isinstance(file, tuple) else file(bench)
    if "--label_kind" not in flags:
        flags += ("--label_kind", "binary")
    last = bench.stops(place, "mine", "--source", path, *flags).splitlines()[-1]
    assert re.search(remedy, last)
    assert not [flag for flag in ("--label_values", "--encoding") if flag in last and not re.search("=|header", remedy)]


def test_positions_tell_repeated_names_apart(bench):
    path = bench.write("pairs.csv", "text,text,label\n甲,乙,1\n")
    bench.refuses("text, text, label", path, "--text_columns", "text", "text")
    bench.binary(path, "--header", "--text_columns", "1", "0", "--label_column", "label")
    assert bench.rows() == [("乙", "甲", 1.0)]


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
