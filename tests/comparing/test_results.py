"""Results of a study read back as they were written."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from cosent.comparing.results import ARRAYS_NAME, COMPARED, KNOTS, STUDY_NAME, pack, read_results, unpack
from cosent.errors import InputError
from cosent.record import QueryMetrics


def test_results_read_back_as_they_were(make_study, change_study):
    """Fails if a field or an array of a result is lost, or runs that share an array each store it."""
    folder = make_study({"cosent scale_5": 0.8, "sbert": 2.0}, settings={"scale": 5.0}, train_pairs=9)
    first = read_results(folder)
    queries = {"lcqmc": QueryMetrics("t", {"after": {COMPARED: np.array([0.5, 0.25], dtype=np.float32)}})}
    change_study(folder, lambda result: replace(result, queries=queries, point="" if result.seed == 1 else "scale=5.0"))
    study = read_results(folder)
    assert study.results == [result for result in first.results if result.seed == 1] and len(study.trials) == 2
    for kept, result in zip(study.results, (r for r in first.results if r.seed == 1), strict=True):
        assert kept.queries["lcqmc"].moments["after"][COMPARED].tolist() == [0.5, 0.25]
        scores = kept.scores["lcqmc"]
        assert all(np.array_equal(scores[name], values) for name, values in result.scores["lcqmc"].items())
    with np.load(folder / ARRAYS_NAME) as arrays:  # after: 4, before and labels: 1 each; queries: 1
        assert len(arrays.files) == 2 * (4 + 2) + 1
    text = (folder / STUDY_NAME).read_text(encoding="utf-8")
    for damaged in (text.replace("0.8", "0.9", 1), text[: text.rindex('{"recipe"')]):
        (folder / STUDY_NAME).write_text(damaged, encoding="utf-8")
        with pytest.raises(InputError, match=f"{STUDY_NAME} cannot be read .*damaged"):
            read_results(folder)


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
def test_the_ranking_is_exact(draw):
    """Fails if keeping scores in two bytes changes a Spearman, merges two scores or splits a tie."""
    scores = draw(np.random.default_rng(0)).astype(np.float32)
    packed = pack(scores)
    kept = unpack(*packed.values())
    assert packed["/ranks"].dtype.itemsize <= 2
    assert np.array_equal(stats.rankdata(kept), stats.rankdata(scores))
    # Each interpolated value lies between the quantiles around it.
    distinct = np.unique(scores.astype(np.float64))
    places = np.searchsorted(distinct, scores)
    step = len(distinct) // (KNOTS - 1) + 2
    low, high = distinct[np.maximum(places - step, 0)], distinct[np.minimum(places + step, len(distinct) - 1)]
    assert np.all((low <= kept) & (kept <= high))


def test_what_is_packed_on_paper():
    """Fails if labels are not kept themselves, as 65 values and fewer are, or NaN is ranked as the best score."""
    packed = pack(np.array([0.2, 5.0, 0.2, 1.25]))
    assert packed["/ranks"].tolist() == [0, 2, 0, 1] and packed["/knots"].tolist() == [0.2, 1.25, 5.0]
    with pytest.raises(ValueError, match="not finite"):
        pack(np.array([0.1, np.nan]))
