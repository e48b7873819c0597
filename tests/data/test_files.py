"""Tables of sentences: every format gives the same rows, what cannot be read is named, and nothing is half written."""

import gzip
import tracemalloc
import zipfile
from datetime import UTC, datetime

import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest

from cosent.data.files import PAIR, SENTENCE, open_table
from cosent.data.writers import check_output, table_writer
from cosent.errors import InputError

ROWS = [{"id": "1", "q1": '他说"好",\u2028走了', "q2": "坏"}, {"id": "2", "q1": "=一", "q2": " 二 "}]
ENDINGS = (".csv", ".jsonl", ".xlsx", ".csv.gz")


def pairs(path, wanted=None):
    return open_table(path, wanted, PAIR, "--text_columns")


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_keeps_what_was_written(tmp_path, ending):
    """Fails if a quote, a comma, U+2028, spaces or a leading `=` change on the way through a format."""
    with table_writer(tmp_path / f"t{ending}", ("id", "q1", "q2")) as write:
        write(ROWS[:1])
        write(ROWS[1:])
    table = pairs(tmp_path / f"t{ending}", ["q1", "q2"])
    assert table.names == ("id", "q1", "q2") and list(table.rows()) == ROWS
    assert list(table.rows(["q2", "q1"])) == [{"q2": row["q2"], "q1": row["q1"]} for row in ROWS]
    if ending != ".xlsx":  # which ends lines by LF
        with table_writer(tmp_path / f"r{ending}", ("q1", "q2")) as write:
            write([{"q1": "好\r走", "q2": "坏"}])
        assert list(pairs(tmp_path / f"r{ending}", ["q1", "q2"]).rows()) == [{"q1": "好\r走", "q2": "坏"}]


def test_a_sheet_of_excel_is_read(tmp_path):
    """Fails if a sheet that Excel saved, with empty sheets and empty rows at its end, is not read as it looks."""
    book = openpyxl.Workbook()
    book.active.append(["问题", "编号", None])
    book.active.append(["怎么还款", 7])
    book.active.append(["如何借款", None])
    book.active.cell(9, 1).number_format = "0"  # a formatted row without content
    book.create_sheet("Sheet2")
    book.save(tmp_path / "a.xlsx")
    table = open_table(tmp_path / "a.xlsx", ["问题"], SENTENCE, "--text_column")
    assert list(table.rows()) == [{"问题": "怎么还款", "编号": 7}, {"问题": "如何借款", "编号": None}]
    with zipfile.ZipFile(tmp_path / "a.xlsx") as whole, zipfile.ZipFile(tmp_path / "c.xlsx", "w") as stale:
        for name in whole.namelist():  # the stated range is that of programs that stream their rows
            stale.writestr(name, whole.read(name).replace(b'ref="A1:C9"', b'ref="A1"'))
    assert b'ref="A1"' in zipfile.ZipFile(tmp_path / "c.xlsx").read("xl/worksheets/sheet1.xml")
    assert list(open_table(tmp_path / "c.xlsx", ["问题"], SENTENCE, "--text_column").rows()) == list(table.rows())
    book["Sheet2"].append(["另一个"])
    book.save(tmp_path / "b.xlsx")
    with pytest.raises(InputError, match="Sheet, Sheet2.*--sheet"):
        open_table(tmp_path / "b.xlsx", None, SENTENCE, "--text_column")


def test_a_header_is_one_only_if_it_names_the_columns(tmp_path):
    """Fails if a header is scored as a pair, or the first pair is lost as a header."""
    with_names, without, wide = (tmp_path / f"{name}.tsv" for name in "abc")
    with_names.write_text("label\tquestion1\tquestion2\n1\t甲\t乙\n", encoding="utf-8")
    without.write_bytes("\ufeff甲\t乙\r\n丙\t丁\r\n".encode())
    wide.write_text("1\t甲\t乙\n2\t丙\t丁\n", encoding="utf-8")
    assert [row["question1"] for row in pairs(with_names).rows()] == ["甲"]
    assert list(pairs(without).rows()) == [
        {"sentence1": "甲", "sentence2": "乙"},
        {"sentence1": "丙", "sentence2": "丁"},
    ]
    with pytest.raises(InputError, match="sentence1 .*got 1, 甲, 乙"):
        pairs(wide)  # an id would be compared with a sentence
    wide.write_text("甲\t乙\t1\n", encoding="utf-8")
    with pytest.raises(InputError, match="text or sentence"):
        open_table(wide, None, SENTENCE, "--text_column")
    wide.write_text("1\t甲\t乙\n", encoding="utf-8")
    assert next(pairs(wide, ["2", "1"]).rows()) == {"column1": "1", "sentence2": "甲", "sentence1": "乙"}
    assert next(pairs(with_names, ["2", "1"]).rows()) == {"label": "1", "question1": "甲", "question2": "乙"}
    assert pairs(with_names, ["2", "1"]).sentences == ("question2", "question1")
    for names, message in (
        (["label"], "2 .* got 1"),
        (["question1", "q9"], "q9, got label"),
        (["1", "1"], "each once"),
    ):
        with pytest.raises(InputError, match=message):
            pairs(with_names, names)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.txt", "甲\t乙\n丙\n", ["甲\t乙", "丙"]),
        ("a.jsonl", '{"问": "甲\\t乙"}\n{"问": "\\ud83d\\ude00\\\\ud83d"}\n', ["甲\t乙", "😀\\ud83d"]),
        ("a.csv", '"甲\t乙"\n丙\n', ["甲\t乙", "丙"]),
        ("b.csv", 'text\n"一\n二\n三"\n四\n', ["一\n二\n三", "四"]),
        ("c.csv", 'text,b,c\n"一\n二,三,四\n五，""六""",乙,1\n', ['一\n二,三,四\n五，"六"']),
    ],
)
def test_a_single_column_is_the_sentence(tmp_path, name, content, texts):
    """Fails if a user must name the only column, or a tab, a quoted line break or an emoji cuts the sentence."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(open_table(tmp_path / name, None, SENTENCE, "--text_column").texts()) == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.tsv", b"sentence1\tsentence2\n", "is empty: it has no rows"),
        ("a.tsv", "好\t坏\n好\n".encode(), "line 2: .*2 columns.*got 1"),
        ("a.tsv", "好\t坏\n\n好\t坏\n".encode(), "line 2: .*empty line"),
        *(("a.tsv", f"好\t{blank}\n".encode(), "line 1: .*sentence2") for blank in (" ", "\u200b")),
        ("a.tsv", "好\t坏\n".encode() + "北京\t好\n".encode("gb18030"), "line 2: .*UTF-8.*gb18030"),
        ("a.tsv", "好\n".encode(), "got 好. Columns are separated by tabs"),
        ("a.csv", '甲,乙\n"丙,丁\n戊,己\n庚,辛\n'.encode(), "line 2: expected comma-separated"),
        ("a.csv", 's1,s2\n"甲\n乙",丙\n丁\n'.encode(), "line 4: .*2 columns.*got 1"),
        ("a.csv", '甲,"乙\n丙,丁\n戊,己"\n庚,辛\n'.encode(), "line 1: .*quote"),
        ("a.jsonl", b'{"s1": "a", "s2": "b"}\n{"s1": "a"}\n', "line 2: .*s2.*s1"),
        ("a.jsonl", b'{"s1": "a", "s2": 3}\n', "line 1: .*s2, got 3"),
        ("a.jsonl", b'{"s1": "a", "s2": "b"}\n[1]\n', "line 2: expected one JSON object"),
        ("a.jsonl", b'{"one": "a", "two": "b"}\n', "sentence1 .*got one, two"),
        ("a.tsv.gz", gzip.compress("好\t坏\n".encode() * 999, mtime=0)[:-9], "not a complete gzip file"),
        ("a.jsonl", rb'{"s1": "\ud83d", "s2": "b"}' + b"\n", "line 1: .*half of one"),
        ("a.jsonl", b'{"s1": "a", "s2": ' + b"[" * 200_000 + b"\n", "line 1: .*cannot be read"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read"),
        ("a.xlsx", b"PK", "a.xlsx cannot be read"),
        ("a.pdf", b"", r"\.txt"),
        ("a.parquet.gz", b"", r"\.txt"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    """Fails if a damaged row is skipped, or a user does not learn which line of which file to look at."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(pairs(tmp_path / name).rows())


def test_a_longer_file_takes_no_more_memory(tmp_path):
    """Fails if a table is read as a whole: one larger than the memory could not be read."""
    peaks = {}
    for ending in (".csv.gz", ".parquet"):
        for rows in (1_000, 1_000, 3_000):  # the first time, caches fill
            texts = [f"第{number}个问题" * 5 for number in range(rows)]
            with gzip.open(tmp_path / "a.csv.gz", "wt", encoding="utf-8") as file:
                file.write("\n".join(["text", *texts]))
            pyarrow.parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1000)
            tracemalloc.start()
            assert sum(1 for _ in open_table(tmp_path / f"a{ending}", None, SENTENCE, "").texts()) == rows
            peaks[rows] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peaks[3_000] < 1.5 * peaks[1_000], (ending, peaks)


def test_what_is_not_needed_is_not_read(tmp_path, monkeypatch):
    """Fails if a wide Parquet file is read in full for one column, or a missing extra ends in a stack trace."""
    pyarrow.parquet.write_table(pa.table({"text": ["甲"], "blob": [b"x"]}), tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet", None, SENTENCE, "--text_column")
    assert list(table.rows(table.sentences)) == [{"text": "甲"}]
    assert list(table.rows()) == [{"text": "甲", "blob": b"x"}]
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"\[xlsx\]"):
        pairs(tmp_path / "a.xlsx")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_table_that_is_not_finished_is_not_there(tmp_path, ending):
    """Fails if a job that stops leaves half a table under its name, or a key of later rows is lost in silence."""
    with pytest.raises(KeyboardInterrupt), table_writer(tmp_path / f"a{ending}", ("text",)) as write:
        write([{"text": "好"}])
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    if "jsonl" not in ending:
        with pytest.raises(InputError, match="more"), table_writer(tmp_path / f"a{ending}", ("text",)) as write:
            write([{"text": "好"}, {"text": "好", "more": 1}])
        assert not list(tmp_path.iterdir())


def test_what_a_sheet_cannot_hold(tmp_path):
    """Fails if a long text is cut in silence, or a time zone or a control character ends in a trace."""
    with table_writer(tmp_path / "a.xlsx", ("time",)) as write:
        write([{"time": datetime(2026, 1, 2, tzinfo=UTC)}])
    assert openpyxl.load_workbook(tmp_path / "a.xlsx").active["A2"].value == "2026-01-02T00:00:00+00:00"
    for name, value, message in (("a", "好" * 32768, "32,767 characters"), ("a\x01", "好", "control characters")):
        with pytest.raises(InputError, match=message), table_writer(tmp_path / "b.xlsx", (name,)) as write:
            write([{name: value}])


def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path):
    """Fails if hours of scoring end at a file that is there already, or at a format that nobody writes."""
    there = tmp_path / "a.csv"
    there.write_text("text\n", encoding="utf-8")
    for path, source, message in (
        (there, "b.csv", r"a.csv exists.*--overwrite"),
        (there, there, "is the input"),
        (tmp_path / "a.tsv", "b.csv", r"a.tsv: .*\.csv"),
        (tmp_path / "a.parquet", "b.csv", r"a.parquet: .*\.csv"),
        (tmp_path / "nowhere/a.csv", "b.csv", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            check_output(path, source, overwrite=False)
    check_output(there, "b.csv", overwrite=True)
