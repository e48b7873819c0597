"""Published numbers stand next to the methods they are about."""

from pathlib import Path

import yaml

from cosent.studies.definition import expand, read_study
from cosent.studies.method import Method
from cosent.studies.published import Published

ROOT = Path(__file__).parents[2]


def test_published_numbers_stand_beside_ours(monkeypatch):
    """Fails if a published table names a study that does not ship, no method of it, or a measure that is not shown."""
    monkeypatch.chdir(ROOT)
    tables = yaml.safe_load(Path("results/published.yaml").read_text(encoding="utf-8"))
    assert len(tables) >= 6
    for table in tables:
        published = Published(table["source"], table["measure"], table["rows"], table.get("tower", "bi_encoder"))
        assert published.measure in ("spearman", "accuracy", "first_epoch", "epochs_to_90")
        for study in table["studies"]:
            runs = expand(read_study(f"recipes/studies/{study}.yaml"), {})
            found = [row for run in runs for row in published.of(run.method)]
            assert {"method", "encoder"} < set(found[0]), study


def test_published_rows_are_those_of_the_method():
    """Fails if the number of another encoder, loss or tower stands beside ours."""
    rows = [{"method": m, "encoder": e} for m in ("cosent", "sbert") for e in ("BERT", "RoBERTa")]
    table = Published("source", "spearman", rows)
    ours = Method("bi_encoder", "cosent_mini", "mini")
    assert table.of(Method("bi_encoder", "cosent", "RoBERTa")) == [rows[1]]
    assert table.of(Method("bi_encoder", "sbert", "BERT")) == [rows[2]]
    assert table.of(Method("bi_encoder", "own", "sbert")) == rows[2:], "a variant that sets another loss"
    assert table.of(ours) == rows[:2] and table.of(Method("bi_encoder", "angle", "BERT")) == []
    # Although no other recipe of the study is called cosent_mini, and so the name does not tell the tower.
    assert table.of(Method("cross_encoder", "cosent_mini")) == []
    crossed = Published("source", "spearman", rows, "cross_encoder")
    assert crossed.of(Method("cross_encoder", "cosent_mini")) == rows[:2] and crossed.of(ours) == []
