"""What is kept of scores ranks the pairs exactly as the scores did."""

import numpy as np
import pytest
from scipy import stats

from cosent.run_scores import KNOTS, pack, read_scores, save_scores


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(size=5000),
        lambda rng: 0.999 + 0.001 * rng.random(5000),  # an untrained encoder: float16 would leave three values
        lambda rng: 1 / (1 + np.exp(-8 * rng.normal(size=5000))),  # saturated
        lambda rng: rng.integers(0, 6, 5000) / 5,  # ties
    ],
    ids=["normal", "narrow", "saturated", "ties"],
)
def test_the_ranking_is_exact(draw, tmp_path):
    """Fails if keeping scores in two bytes changes a Spearman, merges two scores or splits a tie."""
    rng = np.random.default_rng(0)
    scores = draw(rng).astype(np.float32)
    labels = (scores + rng.normal(size=5000) * scores.std() > scores.mean()).astype(np.float32)
    save_scores(tmp_path / "s.npz", {"lcqmc": {"test": {"labels": labels, "after": scores}}})
    kept = read_scores(tmp_path / "s.npz")["lcqmc"]["test"]
    assert np.array_equal(stats.rankdata(kept["after"]), stats.rankdata(scores))
    assert np.array_equal(kept["labels"], labels)
    # Each interpolated value lies between the quantiles around it, 1/256 of the distinct values apart.
    distinct = np.unique(scores.astype(np.float64))
    places = np.searchsorted(distinct, scores)
    step = len(distinct) // (KNOTS - 1) + 2
    low, high = distinct[np.maximum(places - step, 0)], distinct[np.minimum(places + step, len(distinct) - 1)]
    assert np.all((low <= kept["after"]) & (kept["after"] <= high))


def test_labels_come_back_as_they_are():
    """Fails if the labels of a report are not those of the corpus: 257 values and fewer are kept themselves."""
    ranks, knots = pack(np.array([0.2, 5.0, 0.2, 1.25]))
    assert ranks.tolist() == [0, 2, 0, 1] and ranks.dtype == np.uint8 and knots.tolist() == [0.2, 1.25, 5.0]


def test_two_bytes_per_score(tmp_path):
    """Fails if the results of a study outgrow its repository: 20,000 scores of a test set and binary labels."""
    rng = np.random.default_rng(0)
    arrays = {"labels": rng.integers(0, 2, 20_000), "before": rng.random(20_000), "after": rng.random(20_000)}
    save_scores(tmp_path / "s.npz", {"atec": {"test": arrays}})
    assert (tmp_path / "s.npz").stat().st_size < 100_000


def test_what_cannot_be_ranked_is_refused(tmp_path):
    """Fails if NaN is ranked as the best score, or scores are kept beside labels of other pairs."""
    with pytest.raises(ValueError, match="not finite"):
        pack(np.array([0.1, np.nan]))
    with pytest.raises(ValueError, match="one length for lcqmc test"):
        save_scores(tmp_path / "s.npz", {"lcqmc": {"test": {"labels": np.zeros(3), "after": np.zeros(2)}}})
