"""A study runs what it lists, once, and goes on past failures."""

import numpy as np
import pytest
import yaml

from cosent import study
from cosent.cli import parse
from cosent.data.manifest import corpus_folder
from cosent.errors import InputError
from cosent.run_record import CorpusRecord, Environment, RunRecord
from cosent.run_scores import read_scores, save_scores
from cosent.studies import runner
from cosent.studies.method import Method
from cosent.studies.results import Result, Speed
from cosent.study import StudyArguments


@pytest.fixture
def run_study(tmp_path, monkeypatch):
    """Returns a function that runs a study with a stand-in for training, and what the stand-in was called with."""
    calls = []

    def train(run, output, args, stop):
        calls.append((run.name, run.flags))
        if run.seed == 13:
            return "error: unlucky"
        output.mkdir(parents=True, exist_ok=True)
        (output / "checkpoint-1").mkdir(exist_ok=True)
        # As Trainer records it: numbers as floats, whatever the recipe said.
        recipe = {key: float(value) if isinstance(value, int) else value for key, value in run.settings.items()}
        recipe["seed"] = run.seed
        history = [
            {"epoch": 1.0, "eval_spearman": 0.5, "eval_runtime": 2.0, "eval_samples_per_second": 100.0},
            {"epoch": 1.0, "loss": 1.0},
        ]
        here = Environment({"torch": "2"}, "c" * 40, "CPU", 1)
        after = {"stsb": {"test": {"spearman": 0.25}}}
        folders = [folder for name in run.corpora if (folder := corpus_folder(name, args.data_dir)) is not None]
        corpora = {folder.name: CorpusRecord.of(folder) for folder in folders}
        RunRecord(recipe=recipe, environment=here, train_pairs=50, after=after, history=history, train_seconds=12.0,
                  seconds=20.0, corpora=corpora).save(output)  # fmt: skip
        split = {"labels": np.array([0, 1]), "after": np.array([0.1, 0.2])}
        save_scores(output / "scores.npz", {"stsb": {"validation": split, "test": split}, "nli": {"validation": split}})
        return None

    monkeypatch.setattr(runner, "launch", train)
    recipe = tmp_path / "cosent.yaml"
    recipe.write_text("loss: cosent\nnum_train_epochs: 6\n")

    def run(*arguments, seeds=(1,), learning_rate=0.1, **more):
        content = {"recipes": [str(recipe)], "corpora": ["stsb"], "seeds": list(seeds), **more}
        content["flags"] = {"learning_rate": learning_rate}
        (tmp_path / "made_up.yaml").write_text(yaml.safe_dump(content))
        folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
        calls.clear()
        return study.main(*parse([str(tmp_path / "made_up.yaml"), *folders, *arguments], StudyArguments)), [*calls]

    return run, tmp_path / "results" / "made_up"


def test_every_run_once_and_the_result_is_kept(run_study):
    """Fails if a study loses a run, repeats a finished one (6 epochs are 6.0 epochs), or forgets its flags."""
    run, results = run_study
    status, calls = run(seeds=[1, 2])
    assert status == 0
    assert sorted(calls) == [(f"cosent-stsb-{seed}", {"learning_rate": 0.1}) for seed in (1, 2)]
    kept = Result.read(results / "cosent-stsb-1.json")
    assert kept.validation_curve == [(1.0, 0.5)] and kept.test("stsb") == 0.25
    assert kept.method == Method("bi_encoder", "cosent") and kept.flags == {"learning_rate": 0.1}
    # 12 s, 2 of them for scoring 200 pairs; 50 pairs trained once in the other 10.
    assert kept.speed == Speed(train_pairs_per_second=5.0, score_pairs_per_second=100.0)
    assert read_scores(results / "cosent-stsb-1.npz")["stsb"].keys() == {"test"}
    assert not list(results.parents[1].glob("runs/**/checkpoint-*")), "checkpoints of finished runs fill the disk"
    assert [name for name, _ in run(seeds=[1, 2, 3])[1]] == ["cosent-stsb-3"]
    assert len(run(seeds=[1, 2], learning_rate=0.2)[1]) == 2, "results of another protocol were taken for these"


def test_results_of_other_settings_leave_the_table(run_study, capsys):
    """Fails if a report averages over results of an old rate, or shows a method that the study no longer has."""
    run, results = run_study
    run(seeds=[1, 2], variants={"a": {}, "b": {"scale": 5.0}})
    status, _ = run(seeds=[1, 2, 13], variants={"a": {"scale": 7.0}})
    assert status == 1 and sorted(path.name for path in results.glob("*.json")) == [
        "cosent-a-stsb-1.json", "cosent-a-stsb-2.json"]  # fmt: skip
    moved = results / runner.EARLIER
    assert {path.name for path in moved.glob("*.npz")} == {f"cosent-{v}-stsb-{s}.npz" for v in "ab" for s in (1, 2)}
    assert "cosent-b-stsb-2.json was made with other settings" in capsys.readouterr().err
    assert run(seeds=[1], variants={"a": {}})[1] == [("cosent-a-stsb-1", {"learning_rate": 0.1})], "scale was given up"


def test_results_of_other_data_leave_the_table(run_study, make_corpus, capsys):
    """Fails if a report compares methods that were trained on different rows under one name, or a machine without the
    corpus loses its results."""
    run, results = run_study
    folder = make_corpus({"train": [("a", "b", 1.0)]}, name="stsb")
    flags = ["--data_dir", str(folder.parent)]
    assert len(run(*flags)[1]) == 1 and run(*flags)[1] == []
    make_corpus({"train": [("a", "b", 0.0)]}, name="stsb")
    assert run()[1] == [], "a corpus that is not there cannot be compared"
    assert len(run(*flags)[1]) == 1
    assert (results / runner.EARLIER / "cosent-stsb-1.json").is_file()
    assert "cosent-stsb-1.json" in capsys.readouterr().err
    assert run(*flags)[1] == []


def test_one_study_at_a_time(run_study):
    """Fails if a second process trains in the folders of the first."""
    run, results = run_study
    results.mkdir(parents=True)
    with runner.study_lock(results), pytest.raises(InputError, match="another process runs this study"):
        run()
    assert run()[0] == 0


def test_what_cannot_be_kept_is_a_failure_of_its_run(run_study, monkeypatch, capsys):
    """Fails if one run without a record ends the study."""
    run, _ = run_study
    monkeypatch.setattr(runner, "launch", lambda *_: None)
    assert run(seeds=[1, 2])[0] == 1
    assert "cosent-stsb-1 failed: its output in" in capsys.readouterr().err


def test_a_failure_is_listed_and_the_rest_goes_on(run_study, capsys):
    """Fails if one bad run ends a night of work, or is taken for finished."""
    run, results = run_study
    status, calls = run(seeds=[13, 1])
    assert status == 1 and len(calls) == 2
    assert "cosent-stsb-13 failed: error: unlucky" in capsys.readouterr().err
    assert not (results / "cosent-stsb-13.json").exists() and (results / "cosent-stsb-1.json").exists()


def test_variants_and_overrides(run_study):
    """Fails if a variant runs without its flags, or a trial's results stand among those of the study."""
    run, results = run_study
    variants = {"scale_5": {"scale": 5.0}, "slow": {"learning_rate": 0.01}}
    assert run(variants=variants)[1] == [
        ("cosent-scale_5-stsb-1", {"learning_rate": 0.1, "scale": 5.0}),
        ("cosent-slow-stsb-1", {"learning_rate": 0.01}),
    ]
    described = yaml.safe_load((results / "study.yaml").read_text())
    assert described["methods"] == ["cosent scale_5", "cosent slow"] and described["seeds"] == [1]
    _, calls = run(
        "--seeds", "7", "--limit_train", "50", "--set", "pooling=cls", "learning_rate=1.0", variants=variants
    )
    flags = {"pooling": "cls", "learning_rate": 1.0, "limit_train": 50}
    assert calls == [("cosent-scale_5-stsb-7", {"scale": 5.0} | flags), ("cosent-slow-stsb-7", flags)]
    trial = results.with_name("made_up-pooling=cls-learning_rate=1.0-limit_train=50")
    assert (trial / "cosent-slow-stsb-7.json").is_file() and not (results / "cosent-slow-stsb-7.json").exists()
