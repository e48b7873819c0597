"""The table of quickstart counts as the page says."""

import re
from pathlib import Path

from benchmarks.quickstart import quickstart_table, wrong_orders

ROOT = Path(__file__).parents[2]


def test_orders_of_similar_pairs_with_others_are_counted():
    """Fails if a pair of equal scores counts as ordered, or published scores are compared with one another."""
    published = [0.95, 0.6, 0.99, 0.7]  # similar, other, similar, other
    assert wrong_orders([0.9, 0.8, 0.85, 0.1], published) == 0
    assert wrong_orders([0.9, 0.85, 0.85, 0.95], published) == 3  # only the first is above the second


def test_a_run_is_next_to_what_was_published():
    """Fails if a score is in the column of another seed, or agreement is that of another run."""
    environment = {"device": "CPU", "commit": "abc"}
    runs = [
        {"seed": 2, "scores": [0.5, 0.9], "test_spearman": 0.25, **environment},
        {"seed": 1, "scores": [0.9, 0.4], "test_spearman": 0.75, **environment},
    ]
    result = {"pairs": [["甲", "乙"], ["丙", "丁"]], "published": [0.977, 0.624], "runs": runs}
    lines = quickstart_table(result).splitlines()
    assert lines[0] == "| pair | published | seed 1 | seed 2 |"
    assert lines[2] == "| 甲 / 乙 | 0.977 | 0.900 | 0.500 |" and lines[3] == "| 丙 / 丁 | 0.624 | 0.400 | 0.900 |"
    assert lines[4].endswith("|  | 0 | 1 |") and lines[5].endswith("|  | 1.00 | -1.00 |")
    assert lines[6].endswith("|  | 75.00 | 25.00 |")


def test_the_recipe_announces_what_its_run_prints():
    """Fails if the recipe of the quickstart announces other figures than the page shows of its run."""
    page = (ROOT / "docs/any_machine.md").read_text(encoding="utf-8")
    spearman, recall = (re.findall(r"0\.\d+", line) for line in re.findall("^demo test .*$", page, re.MULTILINE))
    header = (ROOT / "recipes/bi_encoder/cosent_in_batch_mini.yaml").read_text(encoding="utf-8")
    assert f"Spearman x100 {100 * float(spearman[1]):.1f} and Recall@10 {100 * float(recall[5]):.1f}, seed 42" in header
