"""A study runs what it lists, once, and goes on past failures."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from cosent import study
from cosent.cli import parse
from cosent.errors import InputError
from cosent.flags import as_words
from cosent.run_record import read_scores, save_scores
from cosent.studies import definition, runner
from cosent.studies.progress import Progress
from cosent.studies.results import read_results
from cosent.study import StudyArguments
from cosent.training.arguments import DataArguments, LossArguments, ModelArguments, PairTrainingArguments

ROOT = Path(__file__).parents[1]
STUDIES = sorted((ROOT / "recipes/studies").glob("*.yaml"))


@pytest.fixture
def run_study(tmp_path, monkeypatch):
    """Returns a function that runs a study with a stand-in for training, and what the stand-in was called with."""
    calls = []

    def train(run, output, args, advance, stop):
        calls.append((run.name, run.flags))
        if run.seed == 13:
            return "error: unlucky"
        output.mkdir(parents=True, exist_ok=True)
        (output / "checkpoint-1").mkdir(exist_ok=True)
        advance(0.5)
        # As Trainer records it: numbers as floats, whatever the recipe said.
        recipe = {key: float(value) if isinstance(value, int) else value for key, value in run.settings.items()}
        recipe["seed"] = run.seed
        record = dict.fromkeys(runner.KEPT, "x") | {"recipe": recipe, "train_seconds": 12.0, "train_pairs": 50}
        record["history"] = [
            {"epoch": 1.0, "eval_spearman": 0.5, "eval_runtime": 2.0, "eval_samples_per_second": 100.0},
            {"epoch": 1.0, "loss": 1.0},
        ]
        (output / "run.json").write_text(json.dumps(record))
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
    kept = json.loads((results / "cosent-stsb-1.json").read_text())
    assert kept["validation_curve"] == [[1.0, 0.5]] and kept["after"] == "x"
    assert kept["study"]["method"] == "cosent"
    # 12 s, 2 of them for scoring 200 pairs; 50 pairs trained once in the other 10.
    assert kept["speed"] == {"train_pairs_per_second": 5.0, "score_pairs_per_second": 100.0}
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


def test_one_study_at_a_time(run_study):
    """Fails if a second process trains in the folders of the first."""
    run, results = run_study
    results.mkdir(parents=True)
    with runner.alone(results), pytest.raises(InputError, match="another process runs this study"):
        run()
    assert run()[0] == 0


def test_what_cannot_be_kept_is_a_failure_of_its_run(run_study, monkeypatch, capsys):
    """Fails if one run without a record ends the study."""
    run, _ = run_study
    monkeypatch.setattr(runner, "launch", lambda *_: None)
    assert run(seeds=[1, 2])[0] == 1
    assert "cosent-stsb-1 failed: what it left in" in capsys.readouterr().err


def test_runs_of_one_name_are_refused(tmp_path):
    """Fails if two corpora or recipes of one name share an output folder and a result."""
    recipe = str(tmp_path / "a" / "cosent.yaml")
    with pytest.raises(InputError, match="would be called cosent-faq-1"):
        definition.expand({"recipes": [recipe], "corpora": ["v1/faq", "v2/faq"], "seeds": [1]}, {})
    twice = [str(tmp_path / "x" / "a" / "cosent.yaml"), str(tmp_path / "y" / "a" / "cosent.yaml")]
    with pytest.raises(InputError, match="a/cosent"):
        definition.expand({"recipes": twice, "corpora": ["faq"], "seeds": [1]}, {})


def test_variants_that_an_override_makes_equal_are_one(tmp_path):
    """Fails if `--set model_name_or_path=mini` trains the same twice, under the names of two other encoders."""
    variants = {"BERT": {"model_name_or_path": "a"}, "RoBERTa": {"model_name_or_path": "b"}}
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": ["faq"], "seeds": [1], "variants": variants}
    assert [run.method for run in definition.expand(content, {})] == ["cosent BERT", "cosent RoBERTa"]
    (run,) = definition.expand(content, {"model_name_or_path": "mini"})
    assert run.method == "cosent" and run.flags == {"model_name_or_path": "mini"}


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


def test_recipes_of_one_name_stay_apart(tmp_path):
    """Fails if the cosent of two towers share one file, so that the second overwrites the first."""
    recipes = [tmp_path / tower / "cosent.yaml" for tower in ("bi_encoder", "cross_encoder")]
    runs = definition.expand({"recipes": recipes, "corpora": [["x/lcqmc", "nli"]], "seeds": [1]}, {})
    assert [run.method for run in runs] == ["bi_encoder cosent", "cross_encoder cosent"]
    assert [run.name for run in runs] == ["bi_encoder-cosent-lcqmc-nli-1", "cross_encoder-cosent-lcqmc-nli-1"]


def test_time_left_counts_pairs(make_corpus, pairs, tmp_path):
    """Fails if a run on 64 pairs is expected to last as long as one on 10: 6 epochs of 64, of 10, and unknown."""
    corpus = make_corpus({"train": pairs})
    (tmp_path / "cosent.yaml").write_text("num_train_epochs: 6\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1]}
    whole, part = definition.expand(content, {})[0], definition.expand(content | {"seeds": [2]}, {"limit_train": 10})[0]
    assert (definition.work(whole, str(corpus.parent)), definition.work(part, str(corpus.parent))) == (384, 60)
    assert definition.work(whole, str(tmp_path)) == 1
    progress = Progress({whole: 384, part: 60})
    progress.advance(whole, 0.5)
    progress.advance(part, 1.0, finished=True)
    assert progress.bar.n == 252 and progress.description() == "1/2 runs"
    progress.bar.close()


def test_a_run_is_launched(tmp_path, make_corpus, pairs, tiny_model, capsys, monkeypatch):
    """Fails if a study does not train with its flags or the user's threads, or a failure does not name its reason."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(os.cpu_count()))  # the study's own choice would be half of them
    corpus = make_corpus({"train": pairs[:8], "validation": pairs[:16], "test": pairs[16:32]})
    (tmp_path / "cosent.yaml").write_text("num_train_epochs: 1\npooling: mean\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1]}
    (tmp_path / "s.yaml").write_text(
        yaml.safe_dump(content | {"variants": {"a": {"packing": False}, "b": {"features": ["u"]}}})
    )
    arguments = ["--data_dir", corpus.parent, "--results", tmp_path, "--runs", tmp_path / "runs"]
    arguments += ["--parallel", "2", "--set", f"model_name_or_path={tiny_model}", "--accelerate_config"]
    arguments += [ROOT / "recipes/accelerate/cpu.yaml"]
    assert study.main(*parse(list(map(str, [tmp_path / "s.yaml", *arguments])), StudyArguments)) == 1
    assert "cosent-b-made_up-1 failed: error: --features are those of" in capsys.readouterr().err
    results = tmp_path / f"s-model_name_or_path={tiny_model.name}"
    kept = json.loads((results / "cosent-a-made_up-1.json").read_text())
    assert kept["recipe"]["packing"] is False and kept["speed"]["train_pairs_per_second"] > 0
    assert kept["threads"] == os.cpu_count()


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_study_leaves_nothing_running(tmp_path, make_corpus, pairs, tiny_model, how):
    """Fails if Ctrl-C or a kill leaves a run training in the dark, or starts the next one."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:16]})
    (tmp_path / "cosent.yaml").write_text(f"num_train_epochs: 100000\nmodel_name_or_path: {tiny_model}\n")
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [corpus.name], "seeds": [1, 2]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "cosent.study", tmp_path / "s.yaml", "--data_dir", corpus.parent]
    command += ["--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    command += ["--accelerate_config", ROOT / "recipes/accelerate/cpu.yaml"]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/s/*/checkpoint-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on" in errors
    commands = [" ".join(other.info["cmdline"] or []) for other in psutil.process_iter(["cmdline"])]
    assert any(commands) and not [command for command in commands if str(tmp_path / "runs") in command]
    assert len(list(tmp_path.glob("runs/s/*"))) == 1


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_shipped_studies_are_whole(path, monkeypatch, tmp_path):
    """Fails if a shipped study names a recipe or flag that is not there, or has no launch line."""
    monkeypatch.chdir(ROOT)
    content = definition.read_study(str(path))
    runs = definition.expand(content, {})
    assert len({run.name for run in runs}) == len(runs) > 0
    for run in {run.method: run for run in runs}.values():
        arguments = [
            "--config",
            run.recipe,
            "--corpus",
            *run.corpora,
            "--output_dir",
            str(tmp_path),
            "--use_cpu",
            "true",
        ]
        parse([*arguments, *as_words(run.flags)], ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
    assert f"Launch: python -m cosent.study {path.relative_to(ROOT)}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipes: []\ncorpus: [a]\nseeds: [1]\n", "unknown: corpus. missing: corpora."),
        ("[1, 2]", "missing: recipes, corpora, seeds."),
        ("recipes: [nowhere.yaml]\ncorpora: [a]\nseeds: [1]\n", "names nowhere.yaml, which is not there"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nflags: {learning_rat: 1}\n", "no flag 'learning_rat'. Did you mean"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: {seed: 1}}\n", "x: seed is set by the study"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nflags: {resume_from_checkpoint: auto}\n", "is set by the study"),
        ("recipes: [\n", "is not YAML"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: 5}\n", "x must be a mapping"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x/y: {}}\n", "'x/y' becomes part of a file name"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: {scale: [5, 10]}}\n", "scale takes one value"),
    ],
)
def test_a_study_that_is_wrong(tmp_path, text, message):
    """Fails if a misspelt key or flag makes a study run something else than meant."""
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        definition.read_study(str(tmp_path / "a.yaml"))
    assert message in str(error.value)


def test_no_study_there(tmp_path):
    """Fails if a wrong path ends in a traceback, or a flag of --set passes unchecked."""
    with pytest.raises(InputError, match="There is no study at"):
        definition.read_study(str(tmp_path / "b.yaml"))
    with pytest.raises(InputError, match="takes KEY=VALUE"):
        definition.settings_of(["pooling"], "b.yaml")
    with pytest.raises(InputError, match="no flag 'poling'"):
        definition.settings_of(["poling=cls"], "b.yaml")


def test_results_of_the_first_version_are_recognised(tmp_path):
    """Fails if a study repeats hours of runs, since a flag was recorded under its old name or as `a,b`."""
    content = {"recipes": [str(tmp_path / "cosent.yaml")], "corpora": [["faq", "nli"]], "seeds": [1]}
    (tmp_path / "cosent.yaml").write_text("loss: sbert\nfeatures: [u, v]\n")
    (run,) = definition.expand(content | {"flags": {"packing": False, "num_train_epochs": 6}}, {})
    assert run.corpus == "faq,nli" and run.name == "cosent-faq-nli-1"
    recipe = {"loss": "sbert", "features": "u,v", "no_packing": True, "num_train_epochs": 6.0}
    record = {"recipe": recipe, "study": {"flags": {"no_packing": True, "num_train_epochs": 6}}}
    assert definition.made_by(record, run)
    assert not definition.made_by({"recipe": recipe | {"no_packing": False}}, run)
    assert not definition.made_by({"recipe": recipe | {"features": "u,v,|u-v|"}}, run)


def test_shipped_results_are_those_of_the_shipped_studies(monkeypatch):
    """Fails if running a shipped study again would move its own results aside."""
    monkeypatch.chdir(ROOT)
    recognised = 0
    for folder in sorted(path.parent for path in (ROOT / "results").glob("*/study.yaml")):
        study = definition.read_study(f"recipes/studies/{folder.name}.yaml")
        runs = {(run.method, run.corpus): run for run in definition.expand(study, {})}
        for result in read_results(folder).results:
            assert definition.made_by(result.record, runs[result.method, result.trained_on]), result.file
            recognised += 1
    assert recognised >= 40
