"""If these fail, a user's own pairs are misread, re-drawn in silence, or refused without a remedy."""

import re

import pytest

from cosent.errors import InputError

BINARY = ("--label_kind", "binary")
GRADED = ("--label_kind", "graded", "--label_min", "1", "--label_max", "3")


def test_a_name_outside_the_table_asks_for_the_label_kind(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="'lcqcm' is not in the table .*nearest: lcqmc.*--label_kind"):
        bench.prepare("lcqcm", "--source", path)


def test_a_name_in_the_table_takes_no_second_answer(bench):
    with pytest.raises(InputError, match="lcqmc is in the table, which already sets --label_kind"):
        bench.prepare("lcqmc", "--source", bench.folder, *BINARY)


def test_a_header_with_known_names_is_detected_and_told(bench, capsys):
    path = bench.write("pairs.csv", "id,text1,text2,score\n7,甲,乙,1\n")
    bench.prepare("mine", "--source", path, *BINARY)
    assert bench.rows() == [("甲", "乙", 1.0)]
    assert "line 1 is a header" in capsys.readouterr().out


def test_an_unknown_header_is_never_guessed(bench):
    path = bench.write("pairs.csv", "左,右,同义\n甲,乙,1\n")
    with pytest.raises(InputError, match="(?s)line 1: expected a label that is 0 or 1, got '同义'.*pass --header"):
        bench.prepare("mine", "--source", path, *BINARY)
    bench.prepare("mine", "--source", path, *BINARY, "--header")
    assert bench.rows() == [("甲", "乙", 1.0)]


def test_columns_by_name_and_by_position(bench):
    path = bench.write("pairs.tsv", "同义\t编号\t左\t右\n1\t9\t甲\t乙\n")
    by_name = ("--sentence1_column", "左", "--sentence2_column", "右", "--label_column", "同义")
    by_position = ("--header", "--sentence1_column", "2", "--sentence2_column", "3", "--label_column", "0")
    for flags in (by_name, by_position):
        bench.prepare("mine", "--source", path, *BINARY, *flags, "--overwrite")
        assert bench.rows() == [("甲", "乙", 1.0)]


def test_a_missing_column_names_the_header(bench):
    path = bench.write("pairs.tsv", "sentence1\tsentence2\tgrade\n甲\t乙\t1\n")
    with pytest.raises(InputError, match=r"a column named 'similar', got \['sentence1', 'sentence2', 'grade'\]"):
        bench.prepare("mine", "--source", path, *BINARY, "--label_column", "similar")


def test_more_columns_without_names_are_not_guessed(bench):
    path = bench.write("pairs.tsv", "7\t甲\t乙\t1\n")
    with pytest.raises(InputError, match="expected 3 columns .*got 4.*--sentence1_column"):
        bench.prepare("mine", "--source", path, *BINARY)


def test_no_column_serves_twice(bench):
    """With the label first under a name of its own, position 2 would be the second sentence and the label at once."""
    path = bench.write("pairs.tsv", "同义\tsentence1\tsentence2\n1\t甲\t乙\n")
    with pytest.raises(InputError, match="expected three different columns"):
        bench.prepare("mine", "--source", path, *BINARY)
    bench.prepare("mine", "--source", path, *BINARY, "--label_column", "同义")
    assert bench.rows() == [("甲", "乙", 1.0)]


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), ("甲\t乙\t1\n".encode("gbk"), "line 1: expected UTF-8")]
)
def test_a_file_whose_first_row_cannot_be_read_stops(bench, content, message):
    with pytest.raises(InputError, match=message):
        bench.prepare("mine", "--source", bench.write("pairs.tsv", content), *BINARY)


def test_a_position_beyond_the_last_column_stops(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="expected a column 3"):
        bench.prepare("mine", "--source", path, *BINARY, "--label_column", "3")


def test_names_without_a_header_stop(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="--no_header"):
        bench.prepare("mine", "--source", path, *BINARY, "--no_header", "--label_column", "label")


def test_a_folder_is_cut_by_the_words_of_its_file_names(bench, capsys):
    for name in ("my.train.tsv", "my_dev.tsv", "test-2.tsv", "latest.tsv"):
        bench.write(f"pairs/{name}", f"{name}\t乙\t1\n{name}\t丙\t0\n")
    manifest = bench.prepare("mine", "--source", bench.folder / "pairs", *BINARY)
    assert manifest["absent_splits"] == []
    assert bench.rows("train")[0][0] == "my.train.tsv"
    assert bench.rows("validation")[0][0] == "my_dev.tsv"
    assert bench.rows("test")[0][0] == "test-2.tsv"
    assert "latest.tsv: not read" in capsys.readouterr().out  # the word is `latest`, not `test`


def test_a_split_in_another_format_stops(bench, capsys):
    """Fails if a compressed train file is left out in silence."""
    for name in ("train.tsv", "dev.tsv", "notes.md"):
        path = bench.write(f"folder/{name}", "甲\t乙\t1\n丙\t丁\t0\n")
    bench.prepare("mine", "--source", path.parent, *BINARY)
    assert "notes.md: not read" in capsys.readouterr().out
    (path.parent / "train.tsv").rename(path.parent / "train.tsv.zip")
    with pytest.raises(InputError, match="train.tsv.zip is train by its name"):
        bench.prepare("mine", "--source", path.parent, *BINARY, "--overwrite")


def test_a_folder_that_cannot_be_cut_stops(bench):
    bench.write("pairs/a.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="with train, dev .or valid. or test as a word"):
        bench.prepare("mine", "--source", bench.folder / "pairs", *BINARY)
    bench.write("pairs/train_test.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="could be train or test by its name"):
        bench.prepare("mine", "--source", bench.folder / "pairs", *BINARY)


def test_one_file_is_train_unless_shares_are_asked_for(bench):
    path = bench.write("pairs.tsv", "".join(f"句{i}\t话{i}\t{i % 2}\n" for i in range(100)))
    manifest = bench.prepare("mine", "--source", path, *BINARY)
    assert manifest["splits"]["train"]["rows"] == 100 and manifest["absent_splits"] == ["validation", "test"]


def test_shares_are_explicit_repeatable_and_keep_equal_pairs_together(bench):
    lines = [f"句{i}\t话{i}\t{i % 2}\n" for i in range(100)] + [f"话{i}\t句{i}\t0\n" for i in range(100)]
    flags = (*BINARY, "--validation_share", "0.1", "--test_share", "0.2", "--seed", "7", "--on_conflict", "keep")
    manifest = bench.prepare("mine", "--source", bench.write("pairs.tsv", "".join(lines)), *flags)
    splits = {split: {frozenset(row[:2]) for row in bench.rows(split)} for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in splits.items()} == {"train": 70, "validation": 10, "test": 20}
    assert len(set.union(*splits.values())) == 100
    assert any("0.1 was taken out for validation and 0.2 for test, with seed 7" in w for w in manifest["warnings"])
    bench.prepare("mine", "--source", bench.write("pairs.tsv", "".join(lines[::-1])), *flags, "--overwrite")
    assert {frozenset(row[:2]) for row in bench.rows("test")} == splits["test"]  # whatever the order of the rows


def test_shares_that_cannot_be_taken_stop(bench):
    path = bench.write("pairs/train.tsv", "甲\t乙\t1\n丙\t丁\t0\n")
    with pytest.raises(InputError, match="2 different pairs .or queries. is 0 of them"):
        bench.prepare("mine", "--source", path, *BINARY, "--validation_share", "0.1")
    bench.write("pairs/dev.tsv", "甲\t乙\t1\n")
    with pytest.raises(InputError, match="train, validation and the shares 0 and 0.5"):
        bench.prepare("mine", "--source", path.parent, *BINARY, "--test_share", "0.5")


def test_splits_by_sentence_share_none(bench):
    """Fails if a sentence of validation or test was seen in training, directly or through a chain of pairs."""
    chains = [f"句{chain}-{link}\t句{chain}-{link + 1}\t{link % 2}\n" for chain in range(40) for link in range(5)]
    shares = (*BINARY, "--validation_share", "0.1", "--test_share", "0.2", "--seed", "7")
    path = bench.write("pairs.tsv", "".join(chains))
    warning = next(w for w in bench.prepare("mine", "--source", path, *shares)["warnings"] if "--split_by" in w)
    assert int(re.match(r"(\d+) of 20 validation rows", warning)[1]) > 0
    manifest = bench.prepare("mine", "--source", path, *shares, "--split_by", "sentence", "--overwrite")
    assert not any("share a sentence with train" in one for one in manifest["warnings"])
    splits = {split: bench.rows(split) for split in ("train", "validation", "test")}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 140, "validation": 20, "test": 40}
    sentences = {split: {text for row in rows for text in row[:2]} for split, rows in splits.items()}
    assert not sentences["train"] & (sentences["validation"] | sentences["test"])
    assert not sentences["validation"] & sentences["test"]
    path.write_text("".join(chains[::-1]), encoding="utf-8")
    bench.prepare("mine", "--source", path, *shares, "--split_by", "sentence", "--overwrite")
    assert set(bench.rows("test")) == set(splits["test"]), "whatever the order of the rows"


def test_pairs_that_all_hang_together_cannot_be_split_by_sentence(bench):
    path = bench.write("pairs.tsv", "".join(f"句\t话{number}\t{number % 2}\n" for number in range(50)))
    flags = (*BINARY, "--validation_share", "0.1", "--split_by", "sentence")
    with pytest.raises(InputError, match="largest has 50 of 50 .*--split_by pair"):
        bench.prepare("mine", "--source", path, *flags)
    with pytest.raises(InputError, match="--split_by .*--validation_share"):
        bench.prepare("mine", "--source", path, *BINARY, "--split_by", "sentence")


def test_splits_of_a_folder_that_share_sentences_are_counted(bench):
    bench.write("pairs/train.tsv", "甲\t乙\t1\n丙\t丁\t0\n")
    bench.write("pairs/dev.tsv", "乙\t戊\t1\n己\t庚\t0\n")
    warnings = bench.prepare("mine", "--source", bench.folder / "pairs", *BINARY)["warnings"]
    assert any(one.startswith("1 of 2 validation rows share a sentence with train") for one in warnings)


def test_graded_labels_need_a_range(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1.5\n")
    with pytest.raises(InputError, match="needs --label_min and --label_max"):
        bench.prepare("mine", "--source", path, "--label_kind", "graded")
    manifest = bench.prepare("mine", "--source", path, *GRADED)
    assert (manifest["label_min"], manifest["label_max"], bench.rows()[0][2]) == (1.0, 3.0, 1.5)


def test_a_train_split_with_one_label_is_a_warning(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n丙\t丁\t1\n")
    assert any("every train label is 1" in w for w in bench.prepare("mine", "--source", path, *BINARY)["warnings"])
