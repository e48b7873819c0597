"""No number of the README is typed by hand."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosent import report
from cosent.schema import InputError

ROOT = Path(__file__).parents[1]


def test_the_readme_is_up_to_date():
    """Fails if a result changed and the README still shows the old figure: run `python -m cosent.report README.md`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(report.BLOCK.findall(text)) >= 2
    assert report.fill(text, ROOT / "recipes/results") == text


def test_a_study_on_paper(tmp_path):
    """Fails if mean, deviation or floor are wrong: 0.6 and 0.7 give 65.00 ± 7.07."""
    recipe = {"model_name_or_path": "mini", "pooling": "mean", "per_device_train_batch_size": 32}
    recipe |= {"learning_rate": 5e-4, "num_train_epochs": 6}
    for seed, spearman in ((1, 0.6), (2, 0.7)):
        run = {"after": {"stsb": {"test": {"spearman": spearman}}}, "train_seconds": 90, "corpora": {"stsb": {}}}
        run["recipe"] = recipe | {"seed": seed}
        (tmp_path / "study").mkdir(exist_ok=True)
        (tmp_path / "study" / f"cosent-stsb-{seed}.json").write_text(
            json.dumps(run | {"device": "CPU", "commit": "c" * 40})
        )
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "stsb.json").write_text(json.dumps({"splits": {"test": {"overlap_spearman": 58.68}}}))
    filled = report.fill("<!-- results:study -->\nold\n<!-- end -->", tmp_path)
    assert "| cosent | 65.00 ± 7.07 | 2 | 1.5 |" in filled and "| 58.68 |" in filled and "old" not in filled
    assert report.fill(filled, tmp_path) == filled
    with pytest.raises(InputError, match="asks for results:nothing"):
        report.fill("<!-- results:nothing -->\n<!-- end -->", tmp_path)


def test_report_answers_at_once():
    """Fails if a table of numbers first loads torch."""
    code = "import sys, cosent.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
