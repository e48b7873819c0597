"""Results of a study read back as they were written, and those of this repository are whole."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.results import ARRAYS_NAME, STUDY_NAME, read_results
from cosent.run import QueryMetrics
from cosent.study import choose, expand, read_study

ROOT = Path(__file__).parents[1]
KEPT = sorted(file.parent for file in (ROOT / "results").glob(f"*/{STUDY_NAME}"))


def test_results_read_back_as_they_were(make_study, change_study):
    """Fails if a field or an array of a result is lost, or runs that share an array each store it."""
    folder = make_study({"cosent scale_5": 0.8, "sbert": 2.0}, settings={"scale": 5.0}, train_pairs=9)
    first = read_results(folder)
    queries = {"lcqmc": QueryMetrics("t", {"after": {"map": np.array([0.5, 0.25], dtype=np.float32)}})}
    change_study(folder, lambda result: replace(result, queries=queries, point="" if result.seed == 1 else "scale=5.0"))
    study = read_results(folder)
    assert study.results == [result for result in first.results if result.seed == 1] and len(study.trials) == 2
    for kept, result in zip(study.results, (r for r in first.results if r.seed == 1), strict=True):
        assert kept.queries["lcqmc"].moments["after"]["map"].tolist() == [0.5, 0.25]
        scores = kept.scores["lcqmc"]
        assert all(np.array_equal(scores[name], values) for name, values in result.scores["lcqmc"].items())
    with np.load(folder / ARRAYS_NAME) as arrays:  # after: 4, before, labels and distances: 1 each; queries: 1
        assert len(arrays.files) == 2 * (4 + 3) + 1


@pytest.mark.parametrize("text", ["", "{", "{}\n{}", '{}\n{"method": 3}'])
def test_what_cannot_be_read_names_the_file(tmp_path, text):
    """Fails if a broken file of results ends in a traceback."""
    (tmp_path / STUDY_NAME).write_text(text)
    with pytest.raises(InputError, match=STUDY_NAME):
        read_results(tmp_path)


def test_a_folder_without_results(tmp_path):
    """Fails if a wrong path ends in an empty report."""
    with pytest.raises(InputError, match="holds no results"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ([(0.5, 0.1), (1.0, 0.5), (2.0, 0.6)], (0.5, 0.6, 2.0)),
        ([(1.0, -0.05), (2.0, -0.02)], (-0.05, -0.02, None)),
        ([(1.0, math.nan), (2.0, 0.4)], (None, 0.4, 2.0)),
        ([(1.0, math.nan)], (None, None, None)),
        ([], (None, None, None)),
    ],
)
def test_learning_on_paper(make_study, curve, found):
    """Fails if a run that never learnt, or was undefined in an epoch, has the numbers of another or stops a report."""
    run = read_results(make_study({"cosent": 0.8}, seeds=(1,), validation_curve=curve)).results[0]
    assert (run.first_epoch, run.best_validation, run.epochs_to_90) == found


# Of results that wait to be run again: one class per grade, AnglE without its in-batch term, one subset for all seeds.
RUN_AGAIN = {"sbert_classes": 6, "in_batch_weight": 0.0, "limit_seed": 42}


def test_shipped_results_are_those_of_the_shipped_studies(monkeypatch):
    """Fails if a result of this repository is not read any more, or running its study would move it aside."""
    monkeypatch.chdir(ROOT)
    assert len(KEPT) >= 25
    wrong, recognised = [], 0
    for folder in KEPT:
        kept = read_results(folder)
        if folder.name.startswith("teach_"):  # of cosent teach, no study
            continue
        study = read_study(f"recipes/studies/{folder.name}.yaml")
        runs, tune = expand(study, {}), study.get("tune", {})
        chosen, waiting = choose(runs, tune, kept.trials) if tune else (runs, [])
        asked = {(run.method, run.corpus): run.settings for run in chosen}
        for result in kept.results:
            settings = {key: value for key, value in result.settings.items() if RUN_AGAIN.get(key) != value}
            now = {
                key: value
                for key, value in asked.get((result.method, result.corpus), {}).items()
                if key not in RUN_AGAIN
            }
            wrong += [f"{folder.name}/{result.name}"] if settings != now else []
        wrong += [f"{folder.name}/{run.name}: grid" for run in waiting]
        recognised += len(kept.results)
    assert wrong == [] and recognised >= 200


def test_results_stay_small():
    """Fails if the repository grows by results again: 80 files and 14 MiB, two files a study."""
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file() and "report." not in file.name]
    assert len(files) <= 80
    assert sum(file.stat().st_size for file in files) < 14 * 2**20  # half of it: ten seeds of the primary studies
    assert all(json.loads(line) for folder in KEPT for line in (folder / STUDY_NAME).read_text().splitlines())
