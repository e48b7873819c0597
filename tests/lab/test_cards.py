"""The figures of the shipped encoders: one script, and the weights that it measured."""

import argparse
import json
import re

import numpy as np
import pytest
from scipy import stats

from cosent.encoders import SHIPPED
from cosent.models.auto import load_bi_encoder
from lab import RESULTS, ROOT
from lab.benchmarks import cards
from lab.tables import figures
from tests.conftest import prepare

FAST = "similar-lookup"
PAIRS = [
    ("怎么还款", "如何还款", 1.0),
    ("怎么还款", "今天下雨", 0.0),
    ("花呗额度", "花呗的额度", 1.0),
    ("开户", "销户", 0.0),
]


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The arguments of a run on a binary and a graded corpus, which has finished."""
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path / "data/atec", {"test": PAIRS}, "binary", 1.0)
    prepare(tmp_path / "data/stsb", {"test": [(*pair[:2], 5 * pair[2]) for pair in PAIRS]}, "graded", 5.0)
    args = argparse.Namespace(encoders=[FAST], corpora=["atec", "stsb"], output=tmp_path / "cards.json")
    cards.main(args)
    return args


def test_figures_are_those_of_a_naive_reference(measured):
    """Fails if a card shows the score, the recall or the size of something else."""
    overlap, row = json.loads(measured.output.read_text())["rows"]
    first, second, labels = zip(*PAIRS, strict=True)
    model = load_bi_encoder(FAST)
    scores = model.similarity(list(first), list(second))
    for corpus in measured.corpora:
        assert row["test"][corpus]["spearman"] == pytest.approx(stats.spearmanr(scores, labels).statistic)
        # The two similar pairs are each other's nearest among seven sentences.
        assert row["test"][corpus]["recall_at_10"] == 1.0
    assert row["millions"] == pytest.approx(sum(np.prod(p.shape) for p in model.parameters()) / 1e6)
    assert 7 < row["megabytes"] < 9 and "mean" not in row
    assert overlap["test"]["atec"]["spearman"] > 0.5 and "accuracy" not in row["test"]["stsb"]


def test_the_table_on_paper():
    """Fails if a metric is under another corpus, or a mean is of fewer corpora than it says."""
    test = {name: {"spearman": place / 10, "recall_at_10": 0.5} for place, name in enumerate(cards.NAMES)}
    rows = [
        cards.with_mean({"name": "one", "millions": 5.64, "megabytes": 11.78, "test": test}),
        cards.with_mean({"name": "overlap", "test": {"demo": {"spearman": 0.1972}}}),
    ]
    lines = cards.cards_table({"rows": rows, "device": "CPU", "commit": "abcdef0123456789"}).splitlines()
    cells = "0.00 / 50.00 | 10.00 / 50.00 | 20.00 / 50.00 | 30.00 / 50.00 | 40.00 / 50.00 | 50.00 / 50.00"
    assert lines[2] == f"| one | 5.6 | 11.8 | {cells} | 20.00 |"
    assert lines[3] == "| overlap |  |  | 19.72 |  |"
    assert lines[-1] == "CPU, commit abcdef0123."


def test_the_cards_are_of_the_shipped_weights():
    """Fails if an encoder changed and README and its card still show its old figures: run the script again."""
    rows = json.loads((RESULTS / "cards.json").read_text(encoding="utf-8"))["rows"]
    of = {row["name"]: row for row in rows}
    assert list(of) == [cards.OVERLAP, *SHIPPED]
    assert all(list(row["test"]) == list(cards.NAMES) for row in rows)
    assert {name: of[name]["files"] for name in SHIPPED} == {name: cards.files_of(name) for name in SHIPPED}


def test_no_figure_of_an_encoder_is_typed_by_hand():
    """Fails if README or a card gives a score that lab/tables/figures.yaml does not find in a result."""
    ours = re.compile(
        r"\| (\W*(similar|mini)|test Spearman|Spearman|Recall@10|accuracy|STS-B,|LCQMC,|ATEC,)[^|]*\|(.*)"
    )
    found = {}
    for page in (*ROOT.glob("README*.md"), *ROOT.glob("src/cosent/encoders/*/README.md")):
        text = re.sub(r"<!-- results:.*?<!-- end -->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = figures.fill_figures(text, figures.passages(page), lambda query: "N")
        found |= {f"{page}: {match[0]}": match[3] for line in text.splitlines() if (match := ours.match(line))}
    assert len(found) > 15 and [row for row, cells in found.items() if re.search(r"\d\.\d", cells)] == []
