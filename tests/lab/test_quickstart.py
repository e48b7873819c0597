"""The figures of quickstart count as the page says."""

import re
from pathlib import Path

from lab.benchmarks.quickstart import wrong_orders

ROOT = Path(__file__).parents[2]


def test_orders_of_similar_pairs_with_others_are_counted():
    """Fails if a pair of equal scores counts as ordered, or published scores are compared with one another."""
    published = [0.95, 0.6, 0.99, 0.7]  # similar, other, similar, other
    assert wrong_orders([0.9, 0.8, 0.85, 0.1], published) == 0
    assert wrong_orders([0.9, 0.85, 0.85, 0.95], published) == 3  # only the first is above the second


def test_the_recipe_announces_what_its_run_prints():
    """Fails if the recipe of the quickstart announces other figures than the page shows of its run."""
    page = (ROOT / "docs/bi_encoder.md").read_text(encoding="utf-8")
    spearman, recall = (re.findall(r"0\.\d+", line) for line in re.findall("^demo test .*$", page, re.MULTILINE))
    header = (ROOT / "recipes/bi_encoder/default.yaml").read_text(encoding="utf-8")
    assert f"Spearman x100 {100 * float(spearman[1]):.1f} and Recall@10 {100 * float(recall[5]):.1f}, seed 42" in header
