"""Intervals of the differences between methods."""

from itertools import combinations

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.evaluation.significance import Difference
from cosent.reporting.differences import compare, difference_blocks, differences
from cosent.run_scores import read_scores, save_scores
from cosent.studies.results import read_results


def test_intervals_are_those_of_the_scores(make_study):
    """Fails if a difference is not that of the means, a clear one is missed, or equal methods are told apart."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0, "poor": 3.0}))
    scored = {row: {r.seed: r for r in runs} for row, runs in study.rows.items()}
    found = compare(scored, "lcqmc")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"]) and seeds == 2
    assert 0 < gain.low < gain.mean < gain.high
    same, _ = compare({"a": scored["good"], "b": scored["good"]}, "lcqmc")["a", "b"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    file = study.folder / "bad-lcqmc-1.npz"
    other = read_scores(file)
    other["lcqmc"]["test"]["labels"][:2] = 1 - other["lcqmc"]["test"]["labels"][:2]
    save_scores(file, other)
    again = {row: {r.seed: r for r in runs} for row, runs in read_results(study.folder).rows.items()}
    with pytest.raises(InputError, match="bad-lcqmc-1.json was tested on other rows of lcqmc"):
        compare(again, "lcqmc")
    del scored["bad"][1]
    assert compare(scored, "lcqmc")["good", "bad"][1] == 1, "a seed that one method lacks is no pair"


def test_what_is_not_significant_is_called_so(make_study):
    """Fails if a verdict contradicts its interval, or of many methods the figure shows every pair."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0}))
    [_, _, table] = differences(study).blocks
    [_, mean, interval, seeds, verdict] = table.rows[0]
    assert verdict == "good better" and 0 < interval.low < mean.value < interval.high and seeds == 2
    equal = {("a", "b"): (Difference(0.01, -0.02, 0.04), 2), ("a", "c"): (Difference(-0.03, -0.04, -0.02), 2)}
    [_, table] = difference_blocks(equal, "lcqmc")
    assert [row[-1] for row in table.rows] == ["not significant", "c better"] and not table.folded
    many = {pair: (Difference(0.01, -0.02, 0.04), 2) for pair in combinations("abcde", 2)}
    [figures, table] = difference_blocks(many, "lcqmc")
    assert len(table.rows) == 10 and table.folded and figures.svgs[0].count(" - ") < 2 * 10
    assert figures.caption.startswith("Differences between a and the other methods on lcqmc")


def test_missing_scores_are_mentioned(make_study):
    """Fails if results from before scores were kept stop the report, or their missing intervals go unmentioned."""
    blocks = differences(read_results(make_study({"cosent": 1.0, "sbert": 1.0}, keep_scores=False))).blocks
    assert blocks == ["No interval for cosent, sbert: the scores of these runs were not kept."]
