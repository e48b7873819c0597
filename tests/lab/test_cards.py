"""The figures of the shipped encoders: one script, and the weights that it measured."""

import json
import re

from cosent.encoders import SHIPPED
from lab import RESULTS, ROOT
from lab.benchmarks import cards
from lab.tables import figures


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
