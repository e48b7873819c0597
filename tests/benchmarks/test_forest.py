"""The picture of the READMEs shows the differences that the claims have today."""

import re
from pathlib import Path

from benchmarks import forest

ROOT = Path(__file__).parents[2]


def test_the_picture_is_that_of_the_results():
    """Fails if a study was run again and the picture has the old intervals: run `python -m benchmarks.forest`."""
    drawn, kept = forest.draw(ROOT / "results"), forest.FILE.read_text(encoding="utf-8")
    described = [re.search(r"<desc[^>]*>(.*)</desc>", svg)[1] for svg in (drawn, kept)]
    assert described[0] == described[1] and described[0].count("(source: ") >= 2
    assert len(kept) < 100_000


def test_rows_on_paper():
    """Fails if a difference of another pair of methods, encoder or quantity, or of one seed gets into the picture."""
    row = {"compared": ["bi_encoder cosent_mini", "sbert"], "corpus": "stsb", "study": "s", "setting": "mini, 1 epoch"}
    row |= {"mean": 9.0, "low": 8.0, "high": 10.0, "seeds": 3, "published": {"RoBERTa": 8.71, "BERT": 13.73}}
    others = [{"seeds": 1}, {"compared": ["sbert", "cosent"]}, {"compared": ["cosent a", "cosent b"]},
              {"quantity": "first_epoch"}, {"setting": "runs/mini, 1 epoch"},
              {"trained_on": "nli"}]  # fmt: skip
    drawn = forest.rows_of([row, row, *(row | other for other in others), {"claim": "a"}])
    assert drawn == [("Sentence-BERT, STS-B (source: +13.73)", 9.0, 8.0, 10.0)]
