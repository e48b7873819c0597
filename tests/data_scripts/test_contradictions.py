"""If these fail, a pair with two labels pulls training both ways unseen, or sound rows are dropped with it."""

import pytest

from cosent.errors import InputError
from data_scripts.splits import Carve, find_repetitions

BINARY = ("--label_kind", "binary")
ROWS = "甲\t乙\t1\n丙\t丁\t0\n乙\t甲\t0\n甲\t乙\t1\n戊\t己\t1\n戊\t己\t1\n"


def test_the_first_few_are_listed_with_file_and_line(bench):
    path = bench.write("pairs.tsv", ROWS)
    error = bench.stops("1 pairs of train.*--on_conflict drop", "mine", "--source", path, *BINARY)
    assert f"甲 | 乙: 1 in {path}, line 1; 0 in {path}, line 3; 1 in {path}, line 4" in error and "丙" not in error
    assert not bench.output.exists()
    bench.write("pairs.tsv", "".join(f"句{i}\t话{i}\t{label}\n" for i in range(9) for label in (0, 1)))
    assert bench.stops("9 pairs of train", "mine", "--source", path, *BINARY).count(" | ") == 3


def test_drop_and_keep_do_so_and_say_so(bench):
    path = bench.write("pairs.tsv", ROWS)
    manifest = bench.binary(path, "--on_conflict", "drop")
    assert bench.rows() == [("丙", "丁", 0), ("戊", "己", 1), ("戊", "己", 1)]
    train = manifest["splits"]["train"]
    assert train["left_out"] == {"contradictory pair": 3} and train["contradictory_pairs"] == 1
    assert any("3 left out" in warning for warning in manifest["warnings"])
    manifest = bench.binary(path, "--on_conflict", "keep")
    assert len(bench.rows()) == 6
    assert any("1 pairs" in one for one in manifest["warnings"]) and any(
        "2 rows" in one for one in manifest["warnings"]
    )


def test_the_order_of_a_pair_counts_only_for_nli(bench):
    path = bench.write("pairs.tsv", "甲\t乙\tentailment\n乙\t甲\tneutral\n")
    bench.prepare("mine", "--source", path, "--label_kind", "nli")
    assert len(bench.rows()) == 2


def test_published_corpora_stay_as_they_are(bench):
    bench.write("ATEC/ATEC.train.data", "甲\t乙\t1\n甲\t乙\t0\n")
    bench.prepare("atec", "--source", bench.folder)
    assert len(bench.rows()) == 2
    bench.stops("atec .*--on_conflict", "atec", "--source", bench.folder, "--on_conflict", "drop", "--overwrite")


def test_labels_are_compared_as_they_are_stored():
    """1/3 and its float32 are one label: a file written by numpy contradicts nothing."""
    found = find_repetitions([("甲", "乙", 1 / 3), ("乙", "甲", 0.3333333432674408), ("甲", "丙", 0.5)], ordered=False)
    assert (found.repeated, len(found.contradictory)) == (1, 0)
    assert not find_repetitions([], ordered=False).contradictory


def test_shares_that_leave_nothing_to_train_on_stop():
    with pytest.raises(InputError, match="--validation_share 0.5 of 10"):
        Carve(0.5, 0.49, 42).held_out((str(number), ("甲", "乙", 1.0)) for number in range(10))
