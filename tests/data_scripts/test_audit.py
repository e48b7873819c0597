"""If these fail, the audit calls a leaky corpus clean, or its overlap floor is not the published quantity."""

import json

from cosent.cli import parse
from data_scripts import audit

TRAIN = [("甲", "乙", 1), ("甲", "乙", 1), ("乙", "甲", 0), ("丙", "丁", 0), ("NS", "戊", 0), ("？！", "NS", 1)]
TEST = [("乙", "甲", 1), ("丁", "丙", 1), ("甲", "丙", 1), ("甲", "新", 1), ("新", "旧", 1)]


def test_made_up_duplicates_and_leaks_are_found(bench, capsys):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        bench.write(f"raw/{split}.tsv", "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    bench.binary(bench.folder / "raw", "--on_conflict", "keep")
    file = bench.folder / "audit.json"
    audit.main(*parse([str(bench.output), "--output", str(file)], *audit.ARGUMENTS))
    report = json.loads(file.read_text(encoding="utf-8"))
    train, test = report["splits"]["train"], report["splits"]["test"]
    assert (train["rows"], train["repeated_pairs"], train["conflicting_pairs"]) == (6, 2, 1)
    assert test["characters, 100%"] == 1 and train["characters, 100%"] == 2
    assert test["overlap_spearman"] is None, "a single label has no order"
    assert report["leaks"]["train -> test"] == {
        "rows": 5,
        "pair": 2,
        "pair_other_label": 1,  # 丙丁 is 0 in train and 1 in test; 甲乙 has both labels in train
        "both_sentences": 3,
        "one_or_both_sentences": 4,
    }
    shown = capsys.readouterr().out
    assert "train -> test" in shown and "labels of train: 0: 3  1: 3" in shown
