"""A run of a published table on a GPU reaches the page without anybody typing numbers."""

import json
import shutil
from pathlib import Path

from benchmarks import published_runs

ROOT = Path(__file__).parents[2]


def test_a_finished_run_stands_next_to_the_published_number(tmp_path):
    """Fails if results/native of somebody with a GPU would leave our column empty, or fill it with another row's."""
    for name in ("published.yaml", "published_runs.json"):
        shutil.copyfile(ROOT / "results" / name, tmp_path / name)
    before = published_runs.published_table(tmp_path)
    assert "| cosent BERT | 49.74 / – | 72.38 / – | 78.69 / – | 60.00 / – | 80.14 / – |" in before
    (tmp_path / "native").mkdir()
    result = json.loads((ROOT / "results/losses_stsb/cosent-stsb-1.json").read_text(encoding="utf-8"))
    result["study"]["method"] = {"tower": "bi_encoder", "recipe": "cosent", "variant": "BERT", "names_tower": False}
    (tmp_path / "native/cosent-BERT-stsb-1.json").write_text(json.dumps(result), encoding="utf-8")
    reached = f"{100 * result['after']['stsb']['test']['spearman']:.2f}"
    after = published_runs.published_table(tmp_path)
    assert f"| cosent BERT | 49.74 / – | 72.38 / – | 78.69 / – | 60.00 / – | 80.14 / {reached} |" in after
    assert "| sbert BERT | 46.36 / – | 70.36 / – | 78.72 / – | 46.86 / – | 66.41 / – |" in after


def test_every_study_of_published_tables_has_its_cost():
    """Fails if a study of BERT size is added or gets more runs, and the page has the cost of yesterday's."""
    kept = json.loads((ROOT / "results/published_runs.json").read_text(encoding="utf-8"))["rows"]
    assert [row["study"] for row in kept] == list(published_runs.STUDIES)
    for row in kept:
        study = published_runs.read_study(str(ROOT / f"recipes/studies/{row['study']}.yaml"))
        variants, corpora = len(study["variants"]), len(study["corpora"])
        assert row["runs"] == len(study["recipes"]) * variants * corpora * len(study["seeds"])


def test_tokens_on_paper():
    """Fails if a pair counts as one sentence: LCQMC has 238,766 pairs, 90% of sentences up to 15 characters."""
    assert published_runs.tokens("lcqmc", "train") == 238_766 * 2 * (15 + 2)
