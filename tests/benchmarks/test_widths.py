"""Vectors shortened by PCA, and what `cosent` finds with them."""

import numpy as np
import pytest

from benchmarks.widths import measure, principal_directions, widths_table


def test_the_first_direction_has_the_most_variance():
    """Fails if directions are rows, or in rising order: three points on a line through (1, 1), moved off the origin."""
    directions = principal_directions(np.array([[5.0, 2], [6, 3], [8, 5]]))
    assert np.abs(directions[:, 0]) == pytest.approx([0.5**0.5, 0.5**0.5])
    assert directions.T @ directions == pytest.approx(np.eye(2), abs=1e-6)


@pytest.mark.slow
def test_a_run_by_width(train, make_corpus, pairs):
    """Fails if a projection on all directions changes a cosine, or a run with the option counts as a plain one."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:16], "test": pairs})
    rows = measure(str(train(corpus, "--max_steps", "1", output="plain")), str(corpus), (4, 32))
    widths = ("--matryoshka_dims", "4", "--max_steps", "1")
    rows += measure(str(train(corpus, *widths, output="widths")), str(corpus), (4, 32))
    assert [row["way"] for row in rows] == ["cut", "pca", "centred", "matryoshka"]
    cut, turned, centred, _ = rows
    narrow, full = cut["spearman"]
    assert turned["spearman"][1] == pytest.approx(full, abs=1e-3) and turned["spearman"][0] != narrow
    assert abs(centred["spearman"][1] - full) > 1e-2
    table = widths_table({"rows": rows, "corpus": "made up", "widths": (4, 32), "device": "CPU", "commit": None})
    assert f"| Spearman: plain, cut | {100 * cut['spearman'][0]:.2f} | {100 * cut['spearman'][1]:.2f} |" in table
