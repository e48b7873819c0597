"""If these fail, the audit calls a leaky corpus clean, or quickstart measures memorised sentences or wording."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from cosent.data_scripts import audit

from cosent.cli import arguments_of
from cosent.data.corpus import load_corpus, unordered_pairs
from cosent.data.files import PAIR, open_table
from cosent.errors import InputError
from cosent.evaluation.similarity import character_overlap
from cosent.flags import parse

TRAIN = [("甲", "乙", 1), ("甲", "乙", 1), ("乙", "甲", 0), ("丙", "丁", 0), ("NS", "戊", 0), ("？！", "NS", 1)]
TEST = [("乙", "甲", 1), ("丁", "丙", 1), ("甲", "丙", 1), ("甲", "新", 1), ("新", "玙", 1)]
SHOWN_FILE = Path(__file__).parents[2] / "recipes/demo/pairs_8541.tsv"
ROWS = {"train": 20_000, "validation": 500, "test": 500}


def test_made_up_duplicates_and_leaks_are_found(bench, capsys):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        bench.write(f"raw/{split}.tsv", "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    bench.binary(bench.folder / "raw", "--on_conflict", "keep")
    file = bench.folder / "audit.json"
    audit.main(*parse([str(bench.output), "--output", str(file)], *arguments_of(audit.main)))
    report = json.loads(file.read_text(encoding="utf-8"))
    train, test = report["splits"]["train"], report["splits"]["test"]
    assert (train["rows"], train["repeated_pairs"], train["conflicting_pairs"]) == (6, 2, 1)
    assert test["characters, 100%"] == 1 and train["characters, 100%"] == 2
    assert train["unknown_characters, %"] == 0 and test["unknown_characters, %"] == pytest.approx(100 / 10, abs=1e-4)
    assert test["overlap_spearman"] is None, "a single label has no order"
    assert report["leaks"]["train -> test"] == {
        "rows": 5,
        "pair": 2,
        "pair_other_label": 1,  # 丙丁 is 0 in train and 1 in test; 甲乙 has both labels in train
        "both_sentences": 3,
        "one_or_both_sentences": 4,
    }
    shown = capsys.readouterr().out
    assert "unknown to similar: 玙 1\n" in shown
    assert "train -> test" in shown and "labels of train: 0: 3  1: 3" in shown


def test_the_corpus_is_named_without_a_flag():
    """Fails if `--corpus`, the flag of other jobs, is answered with the question whether `--corpus` was meant."""
    with pytest.raises(InputError, match="'--corpus'. Give its value alone"):
        parse(["--corpus", "stsb"], *arguments_of(audit.main))


def test_the_demo_corpus(bench):
    """Fails if a pair repeats, a sentence leaks or is in the quickstart table, or wording gives the grade away."""
    manifest = bench.prepare("demo")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == ROWS and manifest["warnings"] == []
    splits = load_corpus(str(bench.output)).splits
    assert all(set(rows["label"]) == {0.0, 1.0, 2.0, 3.0, 4.0} for rows in splits.values())
    pairs = {split: list(zip(unordered_pairs(rows), rows["label"], strict=True)) for split, rows in splits.items()}
    assert all(len({pair for pair, _ in rows}) == len(rows) for rows in pairs.values())
    for first, second in combinations(pairs.values(), 2):
        assert audit.leaks(first, second)["one_or_both_sentences"] == 0
    table = open_table(SHOWN_FILE, None, PAIR, "")
    shown = {row[name] for row in table.rows() for name in table.sentences}
    first, second, labels = (splits["train"][name][:] for name in ("sentence1", "sentence2", "label"))
    assert len(shown) == 15 and not shown & {*first, *second}
    overlaps, labels = np.array(list(map(character_overlap, first[::5], second[::5]))), np.array(labels[::5])
    means = [overlaps[labels == grade].mean() for grade in range(5)]
    assert min(means[1], means[2]) > means[4] + 0.1, "one word outweighs wording"
    assert abs(audit.describe(splits["test"])["overlap_spearman"]) < 25
