"""The mean of ranks of two runs."""

import re

import numpy as np
import pytest
from scipy import stats

from cosent.errors import InputError
from cosent.reporting.ensemble import ensemble
from cosent.run_scores import save_scores
from cosent.studies.results import read_results


def test_an_ensemble_of_two_runs(make_study, tmp_path):
    """Fails if the fusion is not the mean of ranks, or its gain is not tested on the rows of both."""
    folder = make_study({"one": 1.0, "other": 1.0}, seeds=(1,))
    text = ensemble(str(folder / "one-lcqmc-1.json"), str(folder / "other-lcqmc-1.npz"))
    study = read_results(folder)
    runs = [study.rows[name][0].scores["lcqmc"]["test"] for name in ("one", "other")]
    fused = stats.rankdata(runs[0]["after"]) + stats.rankdata(runs[1]["after"])
    expected = [stats.spearmanr(s, runs[0]["labels"]).statistic for s in (*(run["after"] for run in runs), fused)]
    assert f"| lcqmc | {' | '.join(f'{100 * value:.2f}' for value in expected)} |" in text
    gains = re.findall(r"([+-][\d.]+) \\\[", text)
    assert gains == [f"{100 * (expected[2] - single):+.2f}" for single in expected[:2]]
    low = float(re.findall(r"\\\[([+-][\d.]+),", text)[0])
    assert 0 < low < 100 * (expected[2] - expected[0]), "two independent runs of equal quality gain from each other"
    with pytest.raises(InputError, match="has no scores"):
        ensemble(str(folder), str(tmp_path))
    save_scores(tmp_path / "scores.npz", {"lcqmc": {"test": {"labels": np.zeros(300), "after": np.zeros(300)}}})
    with pytest.raises(InputError, match="other rows of lcqmc"):
        ensemble(str(folder / "one-lcqmc-1.json"), str(tmp_path))
