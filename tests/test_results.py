"""Results of a study read back as they were written, and those of this repository are whole."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cosent.errors import InputError
from cosent.losses import LOSSES
from cosent.results import ARRAYS_NAME, COMPARED, KNOTS, STUDY_NAME, pack, read_results, unpack
from cosent.run import QueryMetrics
from cosent.study import choose, expand, read_study

ROOT = Path(__file__).parents[1]
ENDED = ("groups", "options", "options_lcqmc")  # studies of options that ended, see lab/LOG.md
KEPT = sorted(file.parent for file in (ROOT / "lab/results").glob(f"*/{STUDY_NAME}"))


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


@pytest.mark.parametrize("text", ["", "{", "{}\n{}", '{}\n{"method": 3}'])
def test_what_cannot_be_read_names_the_file(tmp_path, text):
    """Fails if a broken file of results ends in a traceback."""
    (tmp_path / STUDY_NAME).write_text(text)
    with pytest.raises(InputError, match=STUDY_NAME):
        read_results(tmp_path)


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


@pytest.mark.slow
def test_shipped_results_are_those_of_the_shipped_studies(monkeypatch):
    """Fails if a result of this repository is not read any more, or running its study would move it aside."""
    monkeypatch.chdir(ROOT)
    assert len(KEPT) >= 25
    wrong, recognised = [], 0
    for folder in KEPT:
        kept = read_results(folder)
        if folder.name.startswith("teach_") or folder.name in ENDED:  # of cosent teach, or of an earlier commit
            continue
        study = read_study(f"recipes/studies/{folder.name}.yaml")
        runs, tune = expand(study, {}), study.get("tune", {})
        chosen, waiting = choose(runs, tune, kept.trials) if tune else (runs, [])
        asked = {(run.method, run.corpus): run.settings for run in chosen}
        for result in kept.results:
            if result.settings["loss"] not in LOSSES:
                continue
            settings = asked.get((result.method, result.corpus))
            wrong += [f"{folder.name}/{result.name}"] if result.settings != settings else []
        wrong += [f"{folder.name}/{run.name}: grid" for run in waiting]
        recognised += len(kept.results)
    assert wrong == [] and recognised >= 200


def test_results_stay_small():
    """Fails if the repository grows by results again: 116 files and 27 MiB, two files a study."""
    files = [file for file in (ROOT / "lab/results").rglob("*") if file.is_file() and "report" not in str(file)]
    assert len(files) <= 116
    assert sum(file.stat().st_size for file in files) < 27 * 2**20  # half of it: ten seeds of the primary family
    assert all(json.loads(line) for folder in KEPT for line in (folder / STUDY_NAME).read_text().splitlines())
