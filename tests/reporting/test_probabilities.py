"""Probabilities of a study, as its report and the documentation show them."""

import json

import numpy as np
import pytest

from benchmarks import tables
from cosent.evaluation.calibration import calibration_from, calibration_metrics
from cosent.reporting.document import to_markdown
from cosent.reporting.probabilities import diagrams, probabilities
from cosent.studies.results import read_results


@pytest.fixture
def study(make_study):
    """Two seeds of one method with a map; its errors as training would have stored them."""
    folder = make_study({"cosent": 0.8})
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        record["calibrations"] = {"lcqmc": {"method": "platt", "pairs": 998, "slope": 3.0, "intercept": -1.5}}
        scores = read_results(folder).results[record["study"]["seed"] - 1].scores["lcqmc"]["test"]
        calibration = calibration_from(record["calibrations"]["lcqmc"])
        found = calibration_metrics(calibration, scores["after"], scores["labels"], "bi_encoder")
        record["after"]["lcqmc"]["test"] |= found
        file.write_text(json.dumps(record))
    return read_results(folder)


def test_errors_are_those_of_the_runs(study):
    """Fails if the table shows the errors of other probabilities, or swaps before and after."""
    text = to_markdown("t", [probabilities(study)], "report.html")
    tests = [run.after["lcqmc"]["test"] for run in study.results]
    raw, brier = (np.mean([test[name] for test in tests]) for name in ("uncalibrated_brier", "brier"))
    assert brier < raw and f"| cosent, lcqmc | platt | {raw:.4f} | {brier:.4f} |" in text


def test_the_diagram_says_how_far_it_is_from_the_diagonal(study):
    """Fails if the picture is that of other scores: its description holds the numbers."""
    (svg,) = diagrams("cosent", study.results[0])
    assert "Largest distance from the diagonal: as is: 0." in svg and "calibrated: 0." in svg
    assert "share of similar pairs by probability" in svg


def test_a_study_of_grades_has_no_such_section(make_study):
    """Fails if a report of STS-B, or of runs before there were maps, shows an empty table."""
    assert probabilities(read_results(make_study({"cosent": 0.8}))).blocks == []


def test_documentation_asks_for_either_table(study):
    """Fails if a page that asks for probabilities is filled with Spearman, or the other way round."""
    text = "".join(f"<!-- results:made_up{view} -->\n<!-- end -->\n" for view in (" probabilities", ""))
    filled = tables.fill(text, study.folder.parent)
    errors, spearman = filled.split("<!-- end -->\n")[:2]
    assert "| cosent, lcqmc | platt |" in errors and "test Spearman" in spearman
    assert tables.fill(filled, study.folder.parent) == filled
