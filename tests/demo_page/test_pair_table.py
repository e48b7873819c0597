"""The table of pairs: read from a user's file, scored, and exported as a corpus that can be prepared."""

import base64

import numpy as np
import pytest

from cosent.cli import parse
from cosent.data.manifest import Manifest
from cosent.demo_page.models import Judge
from cosent.demo_page.pair_table import MOST_ROWS, as_tsv, checked, data_address, read_pairs, scored
from cosent.errors import InputError
from data_scripts import prepare

EMPTY = ["", None, "", ""]


class Lengths:
    def similarity(self, first, second):
        return np.array([len(one) + len(two) for one, two in zip(first, second, strict=True)]) / 4


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.tsv", "sentence1\tsentence2\tlabel\n甲\t乙\t1\n", ["甲", "乙", "1", ""]),
        ("p.csv", 'text1,text2,score\n"甲,",乙,0.5\n', ["甲,", "乙", "0.5", ""]),
        ("p.jsonl", '{"sentence1": "甲", "sentence2": "乙"}\n', ["甲", "乙", "", ""]),
        ("p.txt", "甲\t乙\n", ["甲", "乙", "", ""]),
    ],
)
def test_files_are_read(tmp_path, name, content, expected):
    """Fails if a file that `cosent similarity --pairs` takes cannot be opened here."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_pairs(str(tmp_path / name)) == ([expected], False)


def test_a_long_file_is_cut_and_said(tmp_path):
    """Fails if somebody corrects a part of a file and believes it is all."""
    (tmp_path / "p.tsv").write_text("甲\t乙\n" * (MOST_ROWS + 1), encoding="utf-8")
    rows, more = read_pairs(str(tmp_path / "p.tsv"))
    assert len(rows) == MOST_ROWS and more


def test_a_wrong_file_is_explained_without_its_place(tmp_path):
    """Fails if the page shows a trace, or where uploads lie on this machine."""
    (tmp_path / "p.tsv").write_text("a\tb\tc\td\n", encoding="utf-8")
    with pytest.raises(InputError, match="p.tsv: expected a column") as error:
        read_pairs(str(tmp_path / "p.tsv"))
    assert str(tmp_path) not in str(error.value)


def test_what_is_exported_can_be_prepared(tmp_path):
    """Fails if corrected labels cannot be trained on, because a quote, tab or empty row broke the file."""
    rows = [["我喜欢\t北京", '"我爱北京', "1", "0.9"], EMPTY, ["今天\n好", "明天好", "0", ""], ["a", "b", 1.0, ""]]
    (tmp_path / "pairs.tsv").write_text(as_tsv(rows), encoding="utf-8")
    words = ["mine", "--source", str(tmp_path / "pairs.tsv"), "--label_kind", "binary", "--output", str(tmp_path / "o")]
    prepare.main(*parse(words, *prepare.ARGUMENTS))
    assert Manifest.load(tmp_path / "o").splits["train"]["rows"] == 3
    assert (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1] == '我喜欢 北京\t"我爱北京\t1'


def test_the_link_holds_the_file():
    """Fails if what is downloaded is not what was exported."""
    head, _, body = data_address("甲\t乙\n").partition(",")
    assert head.endswith("base64") and base64.b64decode(body).decode() == "甲\t乙\n"


@pytest.mark.parametrize("label", ["", "similar", "nan", "1e999"])
def test_a_label_that_is_no_number_is_refused(label):
    """Fails if an export is refused only later, by the training that reads it, or without the row's number."""
    with pytest.raises(InputError, match="Row 2: expected a number"):
        as_tsv([EMPTY, ["甲", "乙", label, ""]])


def test_rows_are_checked():
    """Fails if half a pair, no pair or a flood of them is scored."""
    with pytest.raises(InputError, match="no pair"):
        checked([EMPTY])
    with pytest.raises(InputError, match="row 2, sentence2.*empty"):
        checked([EMPTY, ["甲", " ", "1", ""]])
    with pytest.raises(InputError, match="at most 200"):
        checked([["甲", "乙", "1", ""]] * 201)


def test_scores_stand_in_their_rows():
    """Fails if an empty row shifts the scores to other pairs, or a label is lost."""
    found = scored(Judge(Lengths(), [], ""), [["甲", "乙", "1", "old"], EMPTY, ["甲甲", "乙乙", "", ""]])
    assert found == [["甲", "乙", "1", "0.5000"], ["甲甲", "乙乙", "", "1.0000"]]
