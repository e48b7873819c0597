"""The table at the end of a teaching job, and of its page."""

import json

from cosent.reporting.teaching_table import teaching_table
from cosent.studies.results import read_results

METHODS = {"bi_encoder round_0": 4.0, "cross_encoder round_1": 0.2}


def cells(text: str) -> dict[str, list[str]]:
    """Cells of a Markdown table by its first column."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def test_what_a_teacher_adds(make_study):
    """Fails if a gain has the wrong sign, or the test column is not the mean over seeds."""
    study = read_results(make_study(METHODS))
    found = cells(teaching_table(study))
    assert "lcqmc, Spearman x100" in found
    test = {row: [100 * run.test("lcqmc") for run in runs] for row, runs in study.rows.items()}
    means = {row: sum(values) / 2 for row, values in test.items()}
    bi, cross = found["bi_encoder round_0"], found["cross_encoder round_1"]
    assert bi[1].startswith(f"{means['bi_encoder round_0']:.2f} ± ") and bi[2:4] == ["", ""]
    gained, low, high = cross[2].replace("(", "").replace(")", "").replace(" to ", " ").split()
    assert gained == f"{means['cross_encoder round_1'] - means['bi_encoder round_0']:+.2f}"
    assert 0 < float(low) < float(gained) < float(high)
    assert cross[3:] == ["", "2"], "no cross-encoder learnt from labels alone"


def test_a_corpus_without_a_test_split(make_study):
    """Fails if a job on such a corpus ends without a table."""
    folder = make_study(METHODS, seeds=(1,), keep_scores=False)
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        record["after"] = {"lcqmc": {"validation": {"spearman": 0.5}}, "lcqmc_taught": {}}
        file.write_text(json.dumps(record))
    assert cells(teaching_table(read_results(folder)))["bi_encoder round_0"] == ["50.00", "", "", "", "1"]
