"""If these fail, quickstart measures memorised sentences or wording instead of meaning."""

from itertools import combinations
from pathlib import Path

from cosent.data.files import PAIR, open_table
from cosent.evaluation.similarity import character_overlap
from data_scripts import audit
from data_scripts.description import read_splits

SHOWN_FILE = Path(__file__).parents[2] / "recipes/demo/pairs_8541.tsv"
ROWS = {"train": 20_000, "validation": 500, "test": 500}


def test_the_demo_corpus(bench):
    """Fails if a pair repeats, a sentence leaks or is in the quickstart table, or wording gives the grade away."""
    manifest = bench.prepare("demo")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == ROWS and manifest["warnings"] == []
    splits = {split: audit.with_pairs(rows) for split, rows in read_splits(bench.output).items()}
    assert all(set(rows["label"]) == {0.0, 1.0, 2.0, 3.0, 4.0} for rows in splits.values())
    assert all(audit.describe(rows)["repeated_pairs"] == 0 for rows in splits.values())
    for one, other in combinations(splits.values(), 2):
        assert audit.leaks(one, other)["one_or_both_sentences"] == 0
    table = open_table(SHOWN_FILE, None, PAIR, "")
    shown = {row[name] for row in table.rows() for name in table.sentences}
    assert len(shown) == 15
    train = splits["train"]
    assert not shown & {*train["sentence1"], *train["sentence2"]}
    overlaps = [character_overlap(*pair) for pair in zip(train["sentence1"], train["sentence2"], strict=True)]
    means = train.assign(overlap=overlaps).groupby("label")["overlap"].mean()
    assert min(means[1.0], means[2.0]) > means[4.0] + 0.1, "one word outweighs wording"
    assert abs(audit.overlap_spearman(splits["test"])) < 25


def test_the_demo_reads_no_source(bench):
    bench.stops("demo .*--source", "demo", "--source", bench.folder)
