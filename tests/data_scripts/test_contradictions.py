"""If these fail, a pair with two labels pulls training both ways unseen, or sound rows are dropped with it."""

import pytest

from cosent.data.manifest import Manifest
from cosent.errors import InputError
from data_scripts.splits import Carve, find_repetitions

BINARY = ("--label_kind", "binary")
ROWS = "甲\t乙\t1\n丙\t丁\t0\n乙\t甲\t0\n甲\t乙\t1\n戊\t己\t1\n戊\t己\t1\n"


def test_the_first_few_are_listed_with_file_and_line(bench):
    path = bench.write("pairs.tsv", ROWS)
    with pytest.raises(InputError, match="1 pairs of train") as caught:
        bench.prepare("mine", "--source", path, *BINARY)
    assert f"甲 | 乙: 1 in {path}, line 1; 0 in {path}, line 3; 1 in {path}, line 4" in str(caught.value)
    assert "--on_conflict drop" in str(caught.value) and "丙" not in str(caught.value)
    assert not bench.output.exists()


def test_no_more_than_three_are_listed(bench):
    path = bench.write("pairs.tsv", "".join(f"句{i}\t话{i}\t{label}\n" for i in range(9) for label in (0, 1)))
    with pytest.raises(InputError, match="9 pairs of train") as caught:
        bench.prepare("mine", "--source", path, *BINARY)
    assert str(caught.value).count(" | ") == 3


def test_drop_leaves_out_all_rows_of_such_pairs_and_nothing_else(bench):
    manifest = bench.prepare("mine", "--source", bench.write("pairs.tsv", ROWS), *BINARY, "--on_conflict", "drop")
    assert bench.rows() == [("丙", "丁", 0), ("戊", "己", 1), ("戊", "己", 1)]
    train = manifest["splits"]["train"]
    assert train["left_out"] == {"contradictory pair": 3} and train["contradictory_pairs"] == 1
    assert "train: 3 left out, contradictory pair." in manifest["warnings"]


def test_keep_keeps_and_says_so(bench):
    manifest = bench.prepare("mine", "--source", bench.write("pairs.tsv", ROWS), *BINARY, "--on_conflict", "keep")
    assert len(bench.rows()) == 6
    assert "train: 1 pairs have two different labels. They are kept." in manifest["warnings"]
    assert "train: 2 rows repeat an earlier pair with its label. They are kept." in manifest["warnings"]


def test_the_order_of_a_pair_counts_only_for_nli(bench):
    rows = "甲\t乙\tentailment\n乙\t甲\tneutral\n"
    bench.prepare("mine", "--source", bench.write("pairs.tsv", rows), "--label_kind", "nli")
    assert len(bench.rows()) == 2


def test_published_corpora_stay_as_they_are(bench):
    bench.write("ATEC/ATEC.train.data", "甲\t乙\t1\n甲\t乙\t0\n")
    bench.prepare("atec", "--source", bench.folder)
    assert len(bench.rows()) == 2
    with pytest.raises(InputError, match="atec is in the table, which already sets --on_conflict"):
        bench.prepare("atec", "--source", bench.folder, "--on_conflict", "drop", "--overwrite")


def test_labels_are_compared_as_they_are_stored():
    """1/3 and its float32 are one label: a file written by numpy contradicts nothing."""
    found = find_repetitions([("甲", "乙", 1 / 3), ("乙", "甲", 0.3333333432674408), ("甲", "丙", 0.5)], ordered=False)
    assert (found.repeated, len(found.contradictory)) == (1, 0)
    assert not find_repetitions([], ordered=False).contradictory


def test_shares_that_leave_nothing_to_train_on_stop():
    with pytest.raises(InputError, match="--validation_share 0.5 of 10 different pairs"):
        Carve(0.5, 0.49, 42).held_out((str(number), ("甲", "乙", 1.0)) for number in range(10))


def test_a_manifest_of_an_earlier_version_is_read(bench):
    import json

    bench.prepare("mine", "--source", bench.write("pairs.tsv", "甲\t乙\t1\n"), *BINARY)
    path = bench.output / "MANIFEST.json"
    earlier = json.loads(path.read_text(encoding="utf-8"))
    del earlier["prompt"]
    path.write_text(json.dumps(earlier), encoding="utf-8")
    assert Manifest.load(bench.output).prompt == ""
