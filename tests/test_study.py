"""A study runs what it lists, once, and goes on past failures."""

import json
from pathlib import Path

import pytest
import yaml

from cosent import study
from cosent.schema import InputError

ROOT = Path(__file__).parents[1]


def rate(flags: list[str]) -> float:
    return float(flags[flags.index("--learning_rate") + 1])


@pytest.fixture
def run_study(tmp_path, monkeypatch):
    """Returns a function that runs a study with a stand-in for training, and what the stand-in was called with."""
    calls = []

    def train(run, output, flags, args):
        calls.append((run.name, tuple(flags)))
        if run.seed == 13:
            return "error: unlucky"
        output.mkdir(parents=True, exist_ok=True)
        record = dict.fromkeys(study.KEPT, "x") | {"recipe": {"loss": "cosent", "learning_rate": rate(flags)}}
        record["history"] = [{"epoch": 1.0, "eval_spearman": 0.5}, {"loss": 1.0}]
        (output / "run.json").write_text(json.dumps(record))
        return None

    monkeypatch.setattr(study, "launch", train)
    recipe = tmp_path / "cosent.yaml"
    recipe.write_text("loss: cosent\n")

    def run(seeds, learning_rate=0.1):
        content = {"recipes": [str(recipe)], "corpora": ["stsb"], "seeds": seeds}
        content["flags"] = {"learning_rate": learning_rate}
        (tmp_path / "made_up.yaml").write_text(yaml.safe_dump(content))
        arguments = [
            str(tmp_path / "made_up.yaml"),
            "--results",
            str(tmp_path / "results"),
            "--runs",
            str(tmp_path / "runs"),
        ]
        calls.clear()
        return study.main(study.parser().parse_args(arguments)), list(calls)

    return run, tmp_path / "results" / "made_up"


def test_every_run_once_and_the_result_is_kept(run_study):
    """Fails if a study loses a run, repeats a finished one, or forgets its flags."""
    run, results = run_study
    status, calls = run([1, 2])
    assert status == 0
    assert sorted(calls) == [(f"cosent-stsb-{seed}", ("--learning_rate", "0.1")) for seed in (1, 2)]
    kept = json.loads((results / "cosent-stsb-1.json").read_text())
    assert kept["validation_curve"] == [[1.0, 0.5]] and kept["after"] == "x"
    assert [name for name, _ in run([1, 2, 3])[1]] == ["cosent-stsb-3"]
    assert len(run([1, 2], learning_rate=0.2)[1]) == 2, "results of another protocol were taken for these"


def test_a_failure_is_listed_and_the_rest_goes_on(run_study, capsys):
    """Fails if one bad run ends a night of work, or is taken for finished."""
    run, results = run_study
    status, calls = run([13, 1])
    assert status == 1 and len(calls) == 2
    assert "cosent-stsb-13 failed: error: unlucky" in capsys.readouterr().err
    assert not (results / "cosent-stsb-13.json").exists() and (results / "cosent-stsb-1.json").exists()


@pytest.mark.parametrize("path", sorted((ROOT / "recipes/studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_are_whole(path, monkeypatch):
    """Fails if a shipped study names a recipe that is not there, or has no launch line."""
    monkeypatch.chdir(ROOT)
    assert study.read_study(str(path))["seeds"]
    assert f"Launch: python -m cosent.study {path.relative_to(ROOT)}" in path.read_text()


def test_a_study_that_is_wrong(tmp_path):
    """Fails if a misspelt key makes a study run something else than meant."""
    (tmp_path / "a.yaml").write_text("recipes: []\ncorpus: [a]\nseeds: [1]\n")
    with pytest.raises(InputError, match="corpora, corpus is wrong"):
        study.read_study(str(tmp_path / "a.yaml"))
    with pytest.raises(InputError, match="There is no study at"):
        study.read_study(str(tmp_path / "b.yaml"))
