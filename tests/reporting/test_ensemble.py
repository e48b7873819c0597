"""The mean of ranks of several runs."""

import re

import numpy as np
import pytest
from scipy import stats

from cosent.errors import InputError
from cosent.reporting.ensemble import ensemble
from cosent.run_scores import save_scores
from cosent.studies.results import read_results

NUMBERS = re.compile(r"[+-]?\d+\.\d\d")


def expected_rows(runs: list[dict[str, np.ndarray]]) -> tuple[float, list[tuple[float, float]]]:
    """Spearman of the mean of ranks, and of each run alone and of the others without it, times 100."""
    labels, ranks = runs[0]["labels"], [stats.rankdata(run["after"]) for run in runs]

    def spearman(chosen):
        return 100 * stats.spearmanr(np.sum(chosen, axis=0), labels).statistic

    others = [[rank for other, rank in enumerate(ranks) if other != out] for out in range(len(runs))]
    return spearman(ranks), [(spearman([rank]), spearman(rest)) for rank, rest in zip(ranks, others, strict=True)]


@pytest.mark.parametrize("noise", [{"one": 1.0, "other": 1.0}, {"one": 1.0, "other": 1.5, "cross": 9.0}])
def test_an_ensemble(make_study, noise):
    """Fails if the fusion is not the mean of ranks, or its gain and a run's share in it are other numbers."""
    folder, kinds = make_study(noise, seeds=(1,)), ("json", "npz", "json")
    text = ensemble([str(folder / f"{name}-lcqmc-1.{kind}") for name, kind in zip(noise, kinds, strict=False)])
    study = read_results(folder)
    fused, singles = expected_rows([study.rows[name][0].scores["lcqmc"]["test"] for name in noise])
    rows = [line for line in text.splitlines() if line.startswith("| ") and ".json" in line or ".npz" in line]
    assert len(rows) == len(noise)
    for row, (single, without) in zip(rows, singles, strict=True):
        cells = [float(number) for number in NUMBERS.findall(row.partition("-1.")[2])]
        shown = [single, fused - single, without, fused - without]
        assert [cells[place] for place in (0, 1, 4, 5)] == pytest.approx(shown, abs=0.0051)
        assert cells[2] <= cells[1] <= cells[3] and cells[6] <= cells[5] <= cells[7], "an interval around its mean"
    assert f"mean of ranks | {fused:.2f}" in text
    lows = [float(NUMBERS.findall(row.partition("-1.")[2])[2]) for row in rows]
    assert all(low > 0 for low in lows) or len(noise) == 3, "independent runs of equal quality gain from each other"
    if len(noise) == 3:
        assert singles[2][1] > fused, "without the noisy run the ensemble is better, and the table says so"


def test_what_cannot_be_fused(make_study, tmp_path):
    """Fails if runs without scores, or with those of other rows, are fused, or one run is called an ensemble."""
    run = str(make_study({"one": 1.0}, seeds=(1,)) / "one-lcqmc-1.json")
    with pytest.raises(InputError, match="two runs or more, got 1"):
        ensemble([run])
    with pytest.raises(InputError, match="has no scores"):
        ensemble([run, str(tmp_path)])
    save_scores(tmp_path / "scores.npz", {"lcqmc": {"test": {"labels": np.zeros(300), "after": np.zeros(300)}}})
    with pytest.raises(InputError, match="other rows of lcqmc"):
        ensemble([run, run, str(tmp_path)])
    save_scores(tmp_path / "scores.npz", {"atec": {"test": {"labels": np.zeros(300), "after": np.zeros(300)}}})
    with pytest.raises(InputError, match="no test set in common \\(.*lcqmc; .*atec\\)"):
        ensemble([run, str(tmp_path)])
