"""Every method of a study gets its flags by the same grid, on validation, and nothing is trained twice."""

import json

import numpy as np
import pytest
import yaml

from cosent import study
from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.run_queries import QUERIES_NAME, QueryMetrics, save_queries
from cosent.run_record import Environment, RunRecord
from cosent.run_scores import save_scores
from cosent.studies import runner
from cosent.studies.results import Result, read_results
from cosent.study import StudyArguments

# Validation and test Spearman of the stand-in for training, by method and learning rate: test would choose otherwise.
REACHED = {
    ("cosent", 0.1): (0.6, 0.9),
    ("cosent", 0.2): (0.7, 0.1),
    ("sbert", 0.1): (0.5, 0.4),
    ("sbert", 0.2): (0.4, 0.8),
}
GRID = {"tune": {"learning_rate": [0.1, 0.2]}}


@pytest.fixture
def run_study(tmp_path, monkeypatch):
    """Returns a function that runs a study of two methods with a stand-in for training, and what was trained."""
    trained, failing = [], set()

    def train(run, output, args, stop):
        rate = run.settings["learning_rate"]
        trained.append((output.parent.name, run.name, rate, run.settings.get("limit_train")))
        if (run.method.recipe, rate) in failing:
            return "error: unlucky"
        validation, test = REACHED[run.method.recipe, rate]
        output.mkdir(parents=True, exist_ok=True)
        (output / "model").write_text(f"{run.name} at {rate}")
        history = [{"epoch": 1.0, "eval_spearman": validation - 0.2}, {"epoch": 2.0, "eval_spearman": validation}]
        here = Environment({"torch": "2"}, "c" * 40, "CPU", 1)
        after = {"stsb": {"validation": {"spearman": validation}, "test": {"spearman": test}}}
        recipe = run.settings | {"model_name_or_path": "mini", "per_device_train_batch_size": 32, "num_train_epochs": 2}
        RunRecord(recipe=recipe, environment=here, after=after, history=history, train_seconds=1.0, seconds=1.0).save(
            output
        )
        split = {"labels": np.array([0, 1]), "after": np.array([0.1, 0.2])}
        save_scores(output / "scores.npz", {"stsb": {"test": split}})
        save_queries(
            output / QUERIES_NAME,
            {"stsb": {"test": QueryMetrics("task", {"after": dict.fromkeys(METRICS, np.ones(2))})}},
        )
        return None

    monkeypatch.setattr(runner, "launch", train)
    recipes = [tmp_path / f"{name}.yaml" for name in ("cosent", "sbert")]
    for recipe in recipes:
        recipe.write_text(f"loss: {recipe.stem}\nlearning_rate: 0.5\n")

    def run(*arguments, seeds=(1, 2), fails=(), **more):
        content = {"recipes": [str(recipe) for recipe in recipes], "corpora": ["stsb"], "seeds": list(seeds), **more}
        (tmp_path / "made_up.yaml").write_text(yaml.safe_dump(content))
        folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
        trained.clear()
        failing.clear()
        failing.update(fails)
        return study.main(*parse([str(tmp_path / "made_up.yaml"), *folders, *arguments], StudyArguments)), [*trained]

    return run, tmp_path / "results" / "made_up"


def test_every_method_gets_what_validation_prefers(run_study):
    """Fails if the test split chooses, if a method gets the rate of another, or if the grid's first seed runs again."""
    run, results = run_study
    status, trained = run(**GRID)
    names = ("cosent-stsb-1", "sbert-stsb-1")
    tried = [(f"learning_rate={rate}", name, rate, None) for rate in (0.1, 0.2) for name in names]
    assert status == 0
    assert trained == [*tried, ("made_up", "cosent-stsb-2", 0.2, None), ("made_up", "sbert-stsb-2", 0.1, None)]
    kept = {file.stem: Result.read(file) for file in results.glob("*.json")}
    assert {name: one.recipe["learning_rate"] for name, one in kept.items()} == {
        "cosent-stsb-1": 0.2, "cosent-stsb-2": 0.2, "sbert-stsb-1": 0.1, "sbert-stsb-2": 0.1}  # fmt: skip
    assert all(one.scores and one.queries for one in kept.values()), "no interval without scores"
    model = results.parents[1] / "runs/made_up/cosent-stsb-1/model"
    assert model.read_text() == "cosent-stsb-1 at 0.2"
    assert run(**GRID) == (0, [])
    assert [name for _, name, *_ in run(seeds=[1, 2, 3], **GRID)[1]] == ["cosent-stsb-3", "sbert-stsb-3"]


def test_what_was_tried_is_read_back(run_study):
    """Fails if a report cannot show the values that were tried, or shows a value that left the grid."""
    run, results = run_study
    run(tune={"learning_rate": [0.2, 0.1]})
    tried = {method.name: found for (method, _), found in read_results(results).tried.items()}
    assert tried["cosent"].validation == {"learning_rate=0.2": 0.7, "learning_rate=0.1": 0.6}
    assert tried["sbert"].chosen == "learning_rate=0.1"
    described = yaml.safe_load((results / "study.yaml").read_text())
    (results / "study.yaml").write_text(yaml.safe_dump(described | {"tune": {"learning_rate": [0.1, 0.3]}}))
    assert {len(found.validation) for found in read_results(results).tried.values()} == {1}


def test_fewer_pairs_for_the_grid(run_study):
    """Fails if a run on fewer pairs counts as a run of the study."""
    run, results = run_study
    _, trained = run(seeds=[1], tune_flags={"limit_train": 50}, **GRID)
    assert [limit for *_, limit in trained] == [50] * 4 + [None] * 2
    assert [name for folder, name, *_ in trained if folder == "made_up"] == ["cosent-stsb-1", "sbert-stsb-1"]
    assert "limit_train" not in Result.read(results / "cosent-stsb-1.json").recipe


def test_a_trial_of_a_study_with_a_grid(run_study):
    """Fails if --limit_train leaves the grid at its full size, or a rate by --set is tuned away."""
    run, results = run_study
    _, trained = run("--limit_train", "9", "--seeds", "2", tune_flags={"limit_train": 50}, **GRID)
    assert {limit for *_, limit in trained} == {9}
    assert [name[-1] for *_, name, _, _ in trained] == ["1"] * 4 + ["2"] * 2, "the grid has the first seed of the study"
    _, trained = run("--set", "learning_rate=0.1", seeds=[1], **GRID)
    assert [(folder, rate) for folder, _, rate, _ in trained] == [("made_up-learning_rate=0.1", 0.1)] * 2
    assert not (results.with_name("made_up-learning_rate=0.1") / "tuning").exists()


def test_a_failure_in_the_grid_makes_only_its_method_wait(run_study, capsys):
    """Fails if a method is run at a value that won only since another failed, or loses its earlier results."""
    run, results = run_study
    run(tune={"learning_rate": [0.1, 0.1]})
    status, trained = run(fails={("sbert", 0.2)}, **GRID)
    assert status == 1
    assert [(name, rate) for folder, name, rate, _ in trained if folder == "made_up"] == [("cosent-stsb-2", 0.2)]
    assert sorted(path.stem for path in results.glob("sbert*.json")) == ["sbert-stsb-1", "sbert-stsb-2"]
    assert "not run, since their grid is not complete: sbert-stsb-1, sbert-stsb-2" in capsys.readouterr().err
    status, trained = run(**GRID)
    assert status == 0 and [name for _, name, *_ in trained] == ["sbert-stsb-1"], "0.1 stays, and its runs are there"


def test_no_validation_no_choice(run_study):
    """Fails if a corpus without validation silently gets the first value of the grid."""
    run, results = run_study
    run(**GRID)
    for file in results.glob("tuning/*/cosent*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"validation_curve": []}))
    with pytest.raises(InputError, match="cosent on stsb has no validation Spearman"):
        run(**GRID)
