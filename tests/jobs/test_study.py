"""A study trains what it lists, once, with flags chosen on validation, in processes that do not outlive it."""

import os
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import yaml

from cosent.comparing import runs
from cosent.comparing.results import read_results
from cosent.comparing.runs import EARLIER
from cosent.data.corpus import corpus_folder
from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.flags import parse
from cosent.jobs import study
from cosent.jobs.study import StudyArguments
from cosent.record import (
    QUERIES_NAME,
    SCORES_NAME,
    CorpusRecord,
    Environment,
    QueryMetrics,
    RunRecord,
    save_queries,
    save_scores,
)
from cosent.training.arguments import TRAIN_ARGUMENTS
from tests.support.locks import locked_elsewhere

# Validation and test Spearman of the stand-in for training, by recipe and rate: test would choose otherwise.
REACHED = {("cosent", 0.1): (0.6, 0.9), ("cosent", 0.2): (0.7, 0.1)}
REACHED |= {("sbert", 0.1): (0.5, 0.4), ("sbert", 0.2): (0.4, 0.8)}
GRID = {"tune": {"learning_rate": [0.1, 0.2]}}


@pytest.fixture
def run_study(tmp_path, monkeypatch, make_recipe):
    """Returns a function that runs a study with a stand-in for training, and what was trained as (folder, flags)."""
    trained, failing = [], set()

    def train(command, log_file, threads, stop):
        job, folder = command[command.index("train") :], log_file.parent
        args = parse(job[1:], *TRAIN_ARGUMENTS)
        flags = {key: value for group in args for key, value in vars(group).items()}
        name, rate = Path(job[job.index("--config") + 1]).stem, flags["learning_rate"]
        trained.append((f"{folder.parent.name}/{folder.name}", flags))
        if (name, rate) in failing or flags["seed"] == 13:
            return "unlucky"
        validation, test = REACHED.get((name, rate), (0.5, 0.25))
        (folder / "checkpoint-1").mkdir(parents=True, exist_ok=True)
        history = [{"epoch": 1.0, "eval_spearman": validation}]
        history.append({"epoch": 1.0, "loss": 1.0})
        there = corpus_folder("stsb", flags["data_dir"])
        measured = {"environment": Environment({"torch": "2"}, "c" * 40, "CPU", 1), "history": history}
        measured |= {"train_pairs": 50, "train_seconds": 12.0}
        measured["after"] = {"stsb": {"validation": {"spearman": validation}, "test": {"spearman": test}}}
        measured["warnings"] = ["in vain"]
        measured["corpora"] = {} if there is None else {"stsb": CorpusRecord.of(there)}
        recipe = {"loss": name, "learning_rate": rate, "model_name_or_path": "mini"}
        RunRecord(recipe=recipe, **measured).save(folder)
        split = {"labels": np.array([0, 1]), "after": np.array([0.1, 0.2])}
        save_scores(folder / SCORES_NAME, {"stsb": {"validation": split, "test": split}, "nli": {"validation": split}})
        queries = QueryMetrics("task", {"after": dict.fromkeys(METRICS, np.ones(2))})
        save_queries(folder / QUERIES_NAME, {"stsb": {"test": queries}})
        return ""

    monkeypatch.setattr(runs, "run_logged", train)
    monkeypatch.setattr(study, "existing_corpus", lambda *_: None)  # the stand-in reads none
    paths = {name: make_recipe(name, f"loss: {name}\nlearning_rate: 0.5\n") for name in ("cosent", "sbert")}

    def run(*arguments, seeds=(1,), recipes=("cosent",), fails=(), **more):
        content = {"recipes": [paths[name] for name in recipes], "corpora": ["stsb"], "seeds": list(seeds), **more}
        (tmp_path / "made_up.yaml").write_text(yaml.safe_dump(content))
        monkeypatch.chdir(tmp_path)
        trained.clear()
        failing.clear()
        failing.update(fails)
        status = study.main(*parse(["made_up.yaml", *arguments], StudyArguments))
        return status, [(name, flags["learning_rate"]) for name, flags in trained]

    run.trained, run.results, run.runs = trained, tmp_path / "results/made_up", tmp_path / "runs/studies/made_up"
    return run


def test_every_run_once_and_the_result_is_kept(run_study, capsys):
    """Fails if a study loses a run, repeats a finished one, forgets its settings, or is silent on runs in vain."""
    status, trained = run_study(seeds=[1, 2])
    assert "warning: 2 of 2 runs have warnings, the first is cosent-stsb-1: in vain" in capsys.readouterr().err
    assert (status, trained) == (0, [("made_up/cosent-stsb-1", 0.5), ("made_up/cosent-stsb-2", 0.5)])
    result, _ = read_results(run_study.results).results
    assert result.validation_curve == [(1.0, 0.5)] and result.test("stsb") == 0.25 and result.history == []
    assert (result.method, result.settings) == ("cosent", {"loss": "cosent", "learning_rate": 0.5})
    assert result.scores.keys() == result.queries.keys() == {"stsb"}
    assert not list(run_study.runs.rglob("checkpoint-*")), "checkpoints of finished runs fill the disk"
    assert run_study(seeds=[1, 2, 3])[1] == [("made_up/cosent-stsb-3", 0.5)]


def test_a_corpus_that_is_not_there_ends_a_study_at_once(tmp_path, make_corpus, pairs, make_recipe, monkeypatch):
    """Fails if every run of a study with a misspelt corpus is started, to fail for the same reason."""
    folder = make_corpus({"train": pairs}, name="made_up")
    content = {"recipes": [make_recipe("cosent", "loss: cosent\n")], "corpora": [["made_up", "made_pu"]], "seeds": [1]}
    (tmp_path / "made_up.yaml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    flags = ("--data_dir", str(folder.parent))
    with pytest.raises(InputError, match=r"'made_pu'.*Did you mean 'made_up'"):
        study.main(*parse([str(tmp_path / "made_up.yaml"), *flags], StudyArguments))
    assert not (tmp_path / "results").exists()


def test_results_of_other_settings_leave_the_table(run_study, capsys):
    """Fails if a report averages runs of two protocols, or hours of results are deleted."""
    run_study(seeds=[1, 2])
    assert len(run_study(flags={"learning_rate": 0.2}, seeds=[1])[1]) == 1
    assert [result.settings["learning_rate"] for result in read_results(run_study.results).results] == [0.2]
    assert len((run_study.results / EARLIER).read_text().splitlines()) == 2
    assert "cosent-stsb-2 was made with other settings" in capsys.readouterr().err


def test_results_of_other_data_leave_the_table(run_study, make_corpus, capsys):
    """Fails if a report compares methods that were trained on different rows under one name, or a machine without the
    corpus loses its results."""
    folder = make_corpus({"train": [("a", "b", 1.0)]}, name="stsb")
    flags = ["--data_dir", str(folder.parent)]
    assert len(run_study(*flags)[1]) == 1 and run_study(*flags)[1] == []
    make_corpus({"train": [("a", "b", 0.0)]}, name="stsb")
    assert run_study("--data_dir", "nowhere")[1] == [], "a corpus that is not there cannot be compared"
    assert len(run_study(*flags)[1]) == 1 and run_study(*flags)[1] == []
    assert "stsb was prepared anew" in capsys.readouterr().err


def test_one_study_at_a_time(run_study):
    """Fails if a second process trains in the folders of the first."""
    with locked_elsewhere(run_study.results), pytest.raises(InputError, match="in use"):
        run_study()
    assert run_study()[0] == 0


def test_a_failure_is_listed_and_the_rest_goes_on(run_study, monkeypatch, capsys):
    """Fails if one bad run, or one without a record, ends a night of work, or is taken for finished."""
    status, trained = run_study(seeds=[13, 1])
    assert status == 1 and len(trained) == 2
    assert "cosent-stsb-13 failed: unlucky" in capsys.readouterr().err
    assert [result.seed for result in read_results(run_study.results).results] == [1]
    monkeypatch.setattr(runs, "run_logged", lambda *_: "")
    assert run_study(seeds=[1, 2])[0] == 1
    assert "cosent-stsb-2 failed: its output in" in capsys.readouterr().err


def test_variants_and_overrides(run_study):
    """Fails if a variant runs without its flags, or a trial's results stand among those of the study."""
    variants = {"scale_5": {"scale": 5.0}, "slow": {"learning_rate": 0.01}}
    assert run_study(variants=variants)[1] == [
        ("made_up/cosent-scale_5-stsb-1", 0.5),
        ("made_up/cosent-slow-stsb-1", 0.01),
    ]
    assert [flags["scale"] for _, flags in run_study.trained] == [5.0, None]
    assert read_results(run_study.results).definition["methods"] == ["cosent scale_5", "cosent slow"]
    words = ["--seeds", "7", "--set", "pooling=cls", "learning_rate=1.0", "limit_train=50"]
    assert len(run_study(*words, variants=variants)[1]) == 2
    assert {flags["limit_train"] for _, flags in run_study.trained} == {50}
    trial = run_study.results.with_name("made_up-pooling=cls-learning_rate=1.0-limit_train=50")
    assert len(read_results(trial).results) == len(read_results(run_study.results).results) == 2


def test_every_method_gets_what_validation_prefers(run_study):
    """Fails if the test split chooses, or a method gets the rate of another."""
    both = {"recipes": ("cosent", "sbert"), **GRID}
    names = ("cosent-stsb-1", "sbert-stsb-1")
    status, trained = run_study(seeds=[1, 2], **both)
    assert status == 0
    assert trained[:4] == [(f"learning_rate={rate}/{name}", rate) for rate in (0.1, 0.2) for name in names]
    assert len(trained) == 8, "every method once for each seed"
    study_results = read_results(run_study.results)
    rates = {"cosent": 0.2, "sbert": 0.1}
    assert all(result.recipe["learning_rate"] == rates[result.method] for result in study_results.results)
    assert all(result.scores and result.queries for result in study_results.results), "no interval without scores"
    assert study_results.tried["cosent", "stsb"] == {"learning_rate=0.1": 0.6, "learning_rate=0.2": 0.7}
    assert run_study(seeds=[1, 2], **both) == (0, [])
    assert [name for name, _ in run_study(seeds=[1, 2, 3], **both)[1]] == [
        "made_up/cosent-stsb-3",
        "made_up/sbert-stsb-3",
    ]


def test_one_cell_by_one_command(run_study, capsys):
    """Fails if --only and --corpus train more than one method on one corpus, or set results of the others aside."""
    both = {"recipes": ("cosent", "sbert"), **GRID}
    run_study(seeds=[1], **both)
    assert run_study("--only", "sbert", "--corpus", "stsb", "--seeds", "2", **both) == (
        0,
        [("made_up/sbert-stsb-2", 0.1)],
    )
    study_results = read_results(run_study.results)
    assert [r.name for r in study_results.results] == ["cosent-stsb-1", "sbert-stsb-1", "sbert-stsb-2"]
    assert not (run_study.results / EARLIER).exists() and study_results.definition["methods"] == ["cosent", "sbert"]
    rate = ("--set", "learning_rate=0.3", "--only", "cosent", "--seeds", "1")
    assert run_study(*rate, **both)[1] == [("made_up-learning_rate=0.3/cosent-stsb-1", 0.3)], "no grid for a set rate"
    for flag in ("only", "corpus"):
        with pytest.raises(InputError, match=f"--{flag}: .*'cosine'"):
            run_study(f"--{flag}", "cosine", **both)


def test_fewer_pairs_for_the_grid(run_study):
    """Fails if a run on fewer pairs counts as one of the study, --limit_train leaves the grid at its full size, or a
    rate by --set is tuned away."""
    _, trained = run_study(tune_flags={"limit_train": 50}, **GRID)
    assert [flags["limit_train"] for _, flags in run_study.trained] == [50, 50, None]
    assert trained[-1] == ("made_up/cosent-stsb-1", 0.2)
    run_study("--set", "limit_train=9", "--seeds", "2", tune_flags={"limit_train": 50}, **GRID)
    assert [(flags["seed"], flags["limit_train"]) for _, flags in run_study.trained] == [(1, 9), (1, 9), (2, 9)]
    assert run_study("--set", "learning_rate=0.1", **GRID)[1] == [("made_up-learning_rate=0.1/cosent-stsb-1", 0.1)]


def test_a_failure_in_the_grid_makes_only_its_method_wait(run_study, capsys):
    """Fails if a method is run at a value that won only since another failed, or loses its earlier results."""
    both = {"recipes": ("cosent", "sbert")}
    run_study(flags={"learning_rate": 0.1}, seeds=[1, 2], **both)
    status, trained = run_study(seeds=[1, 2], fails={("sbert", 0.2)}, **both, **GRID)
    assert status == 1
    tuned = [each for each in trained if each[0].startswith("made_up/")]
    assert tuned == [("made_up/cosent-stsb-1", 0.2), ("made_up/cosent-stsb-2", 0.2)]
    assert "not run, since their grid is not complete: sbert-stsb-1, sbert-stsb-2" in capsys.readouterr().err
    assert [r.name for r in read_results(run_study.results).results if r.method == "sbert"] == [
        "sbert-stsb-1",
        "sbert-stsb-2",
    ]


def test_ctrl_c_ends_the_active_runs(run_study, monkeypatch, capsys):
    """Fails if a run trains on in the dark after Ctrl-C, or a stopped study looks finished."""
    started, stopped = Event(), []

    def train(command, log_file, threads, stop):
        if log_file.parent.name == "cosent-stsb-1":
            started.wait(60)
            raise KeyboardInterrupt
        started.set()
        stopped.append(stop.wait(60))
        return "stopped"

    monkeypatch.setattr(runs, "run_logged", train)
    assert run_study("--parallel", "2", seeds=[1, 2, 3])[0] == study.STOPPED and stopped and all(stopped)
    assert "the same command continues" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_launched(tmp_path, make_corpus, pairs, tiny_model, monkeypatch):
    """Fails if a study does not train with its flags or the user's threads."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))  # the study's own choice would be half of them
    corpus = make_corpus({"train": pairs[:8], "validation": pairs[:16], "test": pairs[16:32]})
    (tmp_path / "cosent.yaml").write_text("num_train_epochs: 1\npooling: mean\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content | {"flags": {"dropout": 0.0}}))
    monkeypatch.chdir(tmp_path)
    arguments = ["--data_dir", corpus.parent, "--parallel", "2", "--set", f"model_name_or_path={tiny_model}"]
    assert study.main(*parse(list(map(str, [tmp_path / "s.yaml", *arguments])), StudyArguments)) == 0
    (result,) = read_results(tmp_path / f"results/s-model_name_or_path={tiny_model.name}").results
    assert result.recipe["dropout"] == 0.0
    assert result.environment.threads == os.cpu_count()
