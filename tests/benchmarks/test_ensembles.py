"""Benchmarks of merged and fused runs, on runs whose fusion is known."""

import json

import numpy as np
import pytest
from scipy import stats

from benchmarks import fusion
from benchmarks.ensemble_tables import fusion_table, merged_table
from benchmarks.merging import compared, fused
from cosent.errors import InputError
from cosent.studies.results import read_results


def test_two_methods_against_two_seeds(make_study, tmp_path):
    """Fails if a fusion is of one seed only, a pair is counted twice, or methods are compared with the wrong pair."""
    folder, output = make_study({"good": 1.0, "bad_one": 3.0}, seeds=(1, 2, 3)), tmp_path / "fusion.json"
    fusion.main(fusion.parser().parse_args([str(folder), "--output", str(output)]))
    (row,) = json.loads(output.read_text())["rows"]
    study = read_results(folder)
    scores = {name: {run.seed: run.scores["lcqmc"]["test"]["after"] for run in study.rows[name]} for name in study.rows}
    labels = study.rows["good"][0].scores["lcqmc"]["test"]["labels"]

    def mean(one, other, seeds):
        ranks = [stats.rankdata(scores[one][a]) + stats.rankdata(scores[other][b]) for a, b in seeds]
        return np.mean([stats.spearmanr(each, labels).statistic for each in ranks])

    assert sorted(row["methods"]) == ["bad_one", "good"] and row["runs"] == [3, 3]
    first, second = row["methods"]
    once = [(1, 2), (1, 3), (2, 3)]
    assert row["two_seeds"] == pytest.approx([mean(name, name, once) for name in row["methods"]])
    assert row["two_methods"] == pytest.approx(mean(first, second, [*once, *((b, a) for a, b in once)]))
    assert row["beyond_best"]["mean"] == pytest.approx(row["two_methods"] - max(row["two_seeds"]))
    assert row["beyond_mean"]["mean"] == pytest.approx(row["two_methods"] - np.mean(row["two_seeds"]))
    assert row["beyond_best"]["high"] < 0, "noise makes a good pair worse, and the interval says so"
    assert f"{100 * row['two_methods']:.2f}" in fusion_table({"rows": [row]})


def test_one_seed_cannot_be_fused(make_study, tmp_path):
    """Fails if a study of single runs ends in a mean of nothing."""
    with pytest.raises(InputError, match="fewer than two methods with two runs"):
        fusion.compare(read_results(make_study({"one": 1.0, "two": 1.0}, seeds=(1,))))


def test_gains_are_over_the_mean_of_the_runs():
    """Fails if a merged model is compared with the best or the worst of its members."""
    labels = np.random.default_rng(0).integers(0, 2, 400).astype(float)
    singles = [{"scores": labels + spread * np.random.default_rng(seed).normal(size=400), "parameters": 5_000_000}
               for seed, spread in enumerate((1.0, 2.0))]  # fmt: skip
    rows = compared(singles, {"ranks": fused(singles)}, labels)
    alone = [stats.spearmanr(single["scores"], labels).statistic for single in singles]
    assert rows[0]["spearman"] == pytest.approx(alone)
    gain, low, high = rows[1]["gain"]
    assert gain == pytest.approx(rows[1]["spearman"][0] - np.mean(alone)) and low < gain < high
    shown = [{"tower": "bi_encoder", "runs": 2} | row for row in rows]
    text = merged_table({"corpus": "stsb", "rows": shown, "device": "CPU", "commit": None})
    assert "5.0 M" in text and f"{100 * gain:+.2f}" in text and "mean of ranks" in text
