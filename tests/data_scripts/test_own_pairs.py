"""If these fail, a user's own pairs are misread, re-drawn in silence, or refused without a remedy."""

import gzip
import json
import re
import shlex

import pytest
from cosent.data_scripts import audit

from cosent.cli import arguments_of
from cosent.flags import parse
from tests.data_scripts.test_reading import lines

GRADED = ("--label_kind", "graded", "--label_min", "1", "--label_max", "3")
SHARES = ("--validation_share", "0.1", "--test_share", "0.2")
SPLITS = ("train", "validation", "test")


def columns(first: str, second: str, label: str) -> tuple[str, ...]:
    return ("--text_columns", first, second, "--label_column", label)


def test_columns_are_found_or_named(bench, capsys):
    """Fails if a header is a pair, another column is read than the one that was named, or one serves twice."""
    bench.binary(bench.write("a.csv", "id,text1,text2,score\n7,甲,乙,1\n"))
    assert bench.rows() == [("甲", "乙", 1.0)] and "line 1 is a header" in capsys.readouterr().out
    unknown = bench.write("b.csv", "左,右,同义\n甲,乙,1\n")
    bench.refuses("line 1: .*'同义'.*--header", unknown)
    four = bench.write("c.tsv", "同义\t编号\t左\t右\n1\t9\t甲\t乙\n")
    label_first = bench.write("d.tsv", "1\t甲\t乙\n")
    assert "--on_bad_rows" not in bench.refuses("line 1: .*--label_column", label_first), "that would leave nothing"
    sheet = bench.workbook(Sheet1=[("同义", "甲", "乙"), (1, "甲", "乙")])
    named = bench.write("e.tsv", "同义\tsentence1\tsentence2\n1\t甲\t乙\n")
    bench.refuses("each once", named)  # by its place, the label would be the second sentence too
    for path, flags in (
        (unknown, ("--header",)),
        (four, columns("左", "右", "同义")),
        (four, ("--header", *columns("2", "3", "0"))),
        (label_first, columns("1", "2", "0")),
        (sheet, ("--header", *columns("1", "2", "0"))),
        (named, ("--label_column", "同义")),
    ):
        bench.binary(path, *flags)
        assert bench.rows() == [("甲", "乙", 1.0)], (path, flags)


@pytest.mark.parametrize(
    ("name", "content", "flags", "message"),
    [
        ("a.tsv", "sentence1\tsentence2\tx\n甲\t乙\t1\n", ("--label_column", "y"), "y, got sentence1, sentence2, x"),
        ("a.tsv", "甲\t乙\t1\n", ("--label_column", "3"), ", 3, got"),
        ("a.tsv", "甲\t乙\t1\n", ("--no_header", "--label_column", "label"), "--no_header"),
        ("a.csv", "句子1,句子2,标签,标签\n甲,乙,1,0\n", (), "标签, 标签.*--label_column"),
        ("a.csv", "甲，乙，1\n", (), "got 甲，乙，1.*by commas"),
        ("a", "甲\t乙\t1\n", (), r"\.tsv"),
    ],
)
def test_columns_that_are_not_clear_stop(bench, name, content, flags, message):
    bench.refuses(message, bench.write(name, content), *flags)


def test_a_folder_is_cut_by_the_words_of_its_file_names(bench, capsys):
    for name in ("my.train.tsv", "train_2.tsv", "my_dev.tsv", "test-2.tsv", "latest.tsv", "notes.md"):
        path = bench.write(f"pairs/{name}", f"{name}\t乙\t1\n{name}\t丙\t0\n")
    assert bench.binary(path.parent)["absent_splits"] == []
    read = [{row[0] for row in bench.rows(split)} for split in SPLITS]
    assert read == [{"my.train.tsv", "train_2.tsv"}, {"my_dev.tsv"}, {"test-2.tsv"}]
    shown = capsys.readouterr().out
    assert "latest.tsv: not read" in shown and "notes.md: not read" in shown  # the word is `latest`, not `test`
    (path.parent / "my.train.tsv").rename(path.parent / "train.tsv.zip")
    bench.refuses("train.tsv.zip", path.parent)
    bench.write("other/a.tsv", "甲\t乙\t1\n")
    bench.refuses("train, dev .or valid. or test", bench.folder / "other")
    bench.write("other/train_test.tsv", "甲\t乙\t1\n")
    bench.refuses("train or test", bench.folder / "other")


def test_a_folder_may_mix_compressed_files_and_names_of_labels(bench):
    """Fails if train.csv.gz next to dev.csv is refused, or files whose labels have other names need an editor."""
    bench.write("raw/train.csv.gz", gzip.compress("query,title,n,relevant\n甲,乙,7,1\n甲,丙,8,0\n".encode()))
    path = bench.write("raw/dev.csv", "query,title,label\n丁,戊,1\n").parent
    flags = ("--text_columns", "query", "title", "--label_column", "relevant", "label")
    bench.binary(path, *flags)
    assert bench.rows() == [("甲", "乙", 1), ("甲", "丙", 0)] and bench.rows("validation") == [("丁", "戊", 1)]
    bench.refuses("dev.csv, line 1: .*relevant", path, *flags[:5])
    bench.write("raw/train.csv", "query,title,relevant\n甲,乙,1\n")
    bench.refuses("each once.*train.csv, train.csv.gz", path, *flags)


def test_what_comes_next_fits_the_labels(bench, capsys):
    """Fails if `next:` names a training that refuses its data, or a folder with a space falls into two words."""

    def suggested(text):
        bench.binary(bench.write("pairs.csv", text))
        return re.search(r"next: cosent train (.*)", capsys.readouterr().out)

    bench.output = bench.folder / "my pairs"
    words, start = ["--corpus", str(bench.output)], ["--model_name_or_path", "similar"]
    assert (
        shlex.split(suggested("甲,乙,1\n丙,丁,1\n")[1])
        == shlex.split(suggested("甲,乙,1\n丙,丁,0\n")[1])
        == [*words, *start]
    )
    assert shlex.split(suggested("甲,乙,1\n乙,丙,1\n甲,丙,0\n")[1]) == [*words, "--loss", "cosent", *start], "one group"
    assert suggested("甲,乙,1\n乙,丙,1\n") is None and suggested("甲,乙,0\n乙,丙,0\n") is None


def test_labels_the_wrong_way_round_are_asked_about(bench, capsys):
    """Fails if distances train as similarities without a word, or the flags that the question names fail."""
    texts = [(f"第{i}个问题", f"第{i}个问题" if i % 2 == 0 else "甲") for i in range(60)]
    path = bench.write("pairs.csv", lines((*pair, i % 2) for i, pair in enumerate(texts)))
    bench.binary(path)
    asked = re.compile(r"warning: similar pairs share fewer .*(--label_values [\d.= ]*\d)")
    remedy = asked.search(capsys.readouterr().out)[1].split()
    audit.main(*parse([str(bench.output)], *arguments_of(audit.main)))
    assert asked.search(capsys.readouterr().out)[1].split() == remedy
    bench.binary(path, *remedy)
    assert not asked.search(capsys.readouterr().out)
    assert [row[2] for row in bench.rows()] == [1 - i % 2 for i in range(60)]
    bench.prepare("mine", "--source", path, "--label_kind", "graded", "--label_max", "5")
    assert "are they distances? Subtract each label from 5" in capsys.readouterr().out


def test_shares_hold_every_label(bench):
    """Fails if a rare label is missing from test by chance, where no figure would mean anything."""
    path = bench.write("pairs.csv", lines((f"句{i}", f"话{i}", int(i % 20 == 0)) for i in range(400)))
    bench.binary(path, "--validation_share", "0.1", "--test_share", "0.1")
    similar = {split: sum(row[2] for row in bench.rows(split)) for split in SPLITS}
    assert similar == {"train": 16, "validation": 2, "test": 2}


def test_shares_are_explicit_repeatable_and_keep_equal_pairs_together(bench):
    rows = [(f"句{i}", f"话{i}", i % 2) for i in range(100)] + [(f"话{i}", f"句{i}", 0) for i in range(100)]
    path = bench.write("pairs.csv", lines(rows))
    manifest = bench.binary(path, "--on_conflict", "keep")
    assert manifest["splits"]["train"]["rows"] == 200 and manifest["absent_splits"] == ["validation", "test"]
    manifest = bench.binary(path, *SHARES, "--on_conflict", "keep")
    splits = {split: {frozenset(row[:2]) for row in bench.rows(split)} for split in SPLITS}
    assert {split: len(found) for split, found in splits.items()} == {"train": 70, "validation": 10, "test": 20}
    assert sum(len(bench.rows(split)) for split in SPLITS) == 200 and len(set.union(*splits.values())) == 100
    assert re.search("0.1 .*0.2 ", json.dumps(manifest)) and "0.1 " not in str(manifest["warnings"])
    numbers = {int(sentence[1:]) for pair in splits["validation"] for sentence in pair}
    assert numbers - {*range(10)} and numbers - {*range(90, 100)}, "drawn, not the first or the last"
    manifest = bench.binary(bench.write("pairs.csv", lines(rows[::-1])), *SHARES, "--on_conflict", "drop")
    assert manifest["splits"]["train"]["left_out"] == {"contradictory pair": 100}
    assert sum(len(bench.rows(split)) for split in SPLITS) == 100
    bench.binary(path, *SHARES, "--on_conflict", "keep")
    assert {frozenset(row[:2]) for row in bench.rows("test")} == splits["test"]  # whatever the order of the rows


def test_shares_that_cannot_be_taken_stop(bench):
    path = bench.write("pairs/train.tsv", "甲\t乙\t1\n丙\t丁\t0\n")
    bench.refuses("--validation_share 0.1 of 2 .* is 0 of them", path, "--validation_share", "0.1")
    header = bench.write("header.csv", "sentence1,sentence2,label\n")
    bench.refuses("train .*no usable row.*header.csv", header, "--validation_share", "0.1")
    bench.refuses("_share .* of 2 ", path, "--validation_share", "0.49", "--test_share", "0.5")
    bench.refuses("--split_by .*--validation_share", path, "--split_by", "sentence")
    bench.write("pairs/dev.tsv", "甲\t乙\t1\n")
    bench.refuses("--test_share 0.5 .*train, validation", path.parent, "--test_share", "0.5")
    path = bench.write("star.tsv", "".join(f"句\t话{number}\t{number % 2}\n" for number in range(50)))
    bench.refuses("of 50 .*--split_by has 50", path, "--validation_share", "0.1", "--split_by", "sentence")


def test_splits_by_sentence_share_none(bench):
    """Fails if a sentence of validation or test was seen in training, directly or through a chain of pairs."""
    chains = [(f"句{chain}-{link}", f"句{chain}-{link + 1}", link % 2) for chain in range(40) for link in range(5)]
    path = bench.write("pairs.csv", lines(chains))
    warning = next(one for one in bench.binary(path, *SHARES)["warnings"] if "--split_by" in one)
    assert int(re.match(r"(\d+) of 20 validation rows", warning)[1]) > 0
    manifest = bench.binary(path, *SHARES, "--split_by", "sentence")
    assert not any("share a sentence with train" in one for one in manifest["warnings"])
    splits = {split: bench.rows(split) for split in SPLITS}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 140, "validation": 20, "test": 40}
    sentences = {split: {text for row in rows for text in row[:2]} for split, rows in splits.items()}
    assert not sentences["train"] & (sentences["validation"] | sentences["test"])
    assert not sentences["validation"] & sentences["test"]
    bench.binary(bench.write("pairs.csv", lines(chains[::-1])), *SHARES, "--split_by", "sentence")
    assert set(bench.rows("test")) == set(splits["test"]), "whatever the order of the rows"


def test_sentences_that_differ_only_in_case_width_or_their_end_are_one(bench, capsys):
    """Fails if `--split_by sentence` takes 办卡？ for another sentence than 办卡, or audit calls such a leak clean."""
    forms = ("办理第{}号Vip卡", "办理第{}号VIP卡？", "办理第{}号ｖｉｐ卡", "办理第{}号vip卡。\ufeff")
    rows = [(forms[i % 4].format(i // 4), f"另{i}", i % 2) for i in range(200)]
    path = bench.write("pairs.csv", lines(rows))
    manifest = bench.binary(path, *SHARES)
    warned = [int(one.split()[0]) for one in manifest["warnings"] if "share a sentence with train" in one]
    audit.main(*parse([str(bench.output), "--output", str(bench.folder / "a.json")], *arguments_of(audit.main)))
    leaks = json.loads((bench.folder / "a.json").read_text("utf-8"))["leaks"]
    assert [leaks[f"train -> {split}"]["one_or_both_sentences"] for split in SPLITS[1:]] == warned and min(warned) > 9
    manifest = bench.binary(path, *SHARES, "--split_by", "sentence")
    assert not manifest["warnings"]
    sentences = [{row[0][3:5] for row in bench.rows(split)} for split in SPLITS]
    assert not sentences[0] & (sentences[1] | sentences[2]) and sum(map(len, sentences)) == 50


def test_a_split_much_smaller_than_its_share_says_so(bench):
    """Fails if --test_share 0.3 gives a tenth of the pairs without a word."""
    rows = [("句", f"话{i}", i % 2) for i in range(90)] + [(f"甲{i}", f"乙{i}", i % 2) for i in range(10)]
    path = bench.write("pairs.csv", lines(rows))
    warnings = bench.binary(path, "--test_share", "0.3", "--split_by", "sentence")["warnings"]
    assert "test has 10 of 100 different pairs, 10.0% where --test_share asks for 30.0%" in str(warnings)


def test_warnings_and_ranges(bench):
    bench.write("pairs/train.tsv", "甲\t乙\t1\n丙\t丁\t1\n")
    bench.write("pairs/dev.tsv", "乙\t戊\t1\n己\t庚\t0\n")
    warnings = bench.binary(bench.folder / "pairs")["warnings"]
    assert any(one.startswith("1 of 2 validation rows share a sentence") for one in warnings)
    assert any("every train label is 1" in one for one in warnings)
    path = bench.write("pairs.tsv", "甲\t乙\t1.5\n")
    bench.stops("--label_max above --label_min, which is 0", "mine", "--source", path, "--label_kind", "graded")
    bench.stops("float32, got 1e.308", "mine", "--source", path, "--label_kind", "graded", "--label_max", "1e308")
    manifest = bench.prepare("mine", "--source", path, "--label_kind", "graded", "--label_max", "2")
    assert (manifest["label_min"], manifest["label_max"]) == (0.0, 2.0)
    bench.refuses("--label_min .*--label_kind graded", path, *GRADED[2:])
    manifest = bench.prepare("mine", "--source", path, *GRADED)
    assert (manifest["label_min"], manifest["label_max"], bench.rows()[0][2]) == (1.0, 3.0, 1.5)
    bench.write("pairs.tsv", "".join(f"句{i}\t话{i}\t{1 + i / 50}\n" for i in range(101)))
    histogram = bench.prepare("mine", "--source", path, *GRADED)["splits"]["train"]["label_histogram"]
    assert len(histogram) == 10 and sum(histogram.values()) == 101, "many different labels are counted in bins"
