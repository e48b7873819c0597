"""Learning curves, distances and costs of a study, as its report shows them."""

import json
import math

import numpy as np
import pytest

from cosent.reporting import diagnostics
from cosent.reporting.document import to_markdown
from cosent.studies.results import read_results


def test_curves_and_costs_on_paper(make_study):
    """Fails if learning or time is not that of the runs.

    The curve 0.5, 0.58, 0.6 reaches 90% of its best, 0.54, in epoch 2; 90 seconds are 1.5 minutes, and 500 pairs/s
    are 2 ms a pair.
    """
    study = read_results(make_study({"cosent": 0.8}))
    text = to_markdown("t", [diagnostics.learning(study), diagnostics.speed(study)], "report.html")
    assert "| cosent, lcqmc | 50.00 ± 0.00 | 60.00 ± 0.00 | 2.0 |" in text
    assert "| cosent, lcqmc | 1.5 | 200 | 500 | 2.00 |" in text
    assert "| cosent, lcqmc, seed 1 | 1.5 | 200 | 500 | 2.00 |" in text and "cccccccccc" in text


@pytest.mark.parametrize(
    ("curve", "row"),
    [
        ([[1.0, -0.05], [2.0, -0.02]], "| -5.00 ± 0.00 | -2.00 ± 0.00 |  |"),
        ([[1.0, math.nan], [2.0, 0.4]], "|  | 40.00 ± 0.00 | 2.0 |"),
        ([[1.0, math.nan]], "|  |  |  |"),
    ],
)
def test_curves_of_collapsed_runs(curve, row, make_study):
    """Fails if a run that never learnt, or was undefined in an epoch, takes the report of the whole study with it."""
    folder = make_study({"cosent": 0.8})
    for file in folder.glob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"validation_curve": curve}))
    assert f"| cosent, lcqmc {row}" in to_markdown("t", [diagnostics.learning(read_results(folder))], "report.html")


def test_graded_labels_are_split_in_the_middle_of_their_range():
    """Fails if a pair of STS-B with label 3 of 0..5 is drawn among the dissimilar ones."""
    values = np.array([10.0, 20.0, 30.0, 40.0])
    [(low, dissimilar), (high, similar)] = diagnostics.split_by(np.array([0.0, 2.0, 3.0, 5.0]), values)
    assert (low, high) == ("dissimilar", "similar")
    assert dissimilar.tolist() == [10, 20] and similar.tolist() == [30, 40]


def test_distances_are_shown_once_per_encoder(make_study):
    """Fails if runs of one encoder, whose distances before training are equal, fill the page with equal figures."""
    study = read_results(make_study({"cosent": 0.8, "sbert": 2.0}))
    [_, figures, table] = diagnostics.distances(study).blocks
    assert len(figures.svgs) == len(table.rows) == 1 and table.rows[0][0] == "lcqmc, mini, mean pooling"
    scores = study.results[0].scores["lcqmc"]["test"]
    similar = scores["distances"][scores["labels"] == 1]
    assert str(table.rows[0][2]) == f"{similar.mean():.3f} ± {similar.std():.3f}"
