"""A study is checked before anything runs, and stands for the runs that its author meant."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cosent.cli import as_words, parse
from cosent.errors import InputError
from cosent.studies import definition
from cosent.studies.method import Method
from cosent.studies.progress import Progress
from cosent.studies.results import Result, read_results
from cosent.studies.tuning import choose
from cosent.training.arguments import DataArguments, LossArguments, ModelArguments, PairTrainingArguments

ROOT = Path(__file__).parents[2]
STUDIES = [path for path in sorted((ROOT / "recipes/studies").glob("*.yaml")) if path.stem != "claims"]


@pytest.fixture
def make_recipe(tmp_path):
    """Returns a function that writes a recipe and gives back its path."""

    def make(name: str, text: str = "loss: cosent\n") -> str:
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return make


def test_runs_of_one_name_are_refused(make_recipe):
    """Fails if two corpora or recipes of one name share an output folder and a result."""
    recipe = make_recipe("a/cosent")
    with pytest.raises(InputError, match="would be called cosent-faq-1"):
        definition.expand({"recipes": [recipe], "corpora": ["v1/faq", "v2/faq"], "seeds": [1]}, {})
    twice = [recipe, make_recipe("b/cosent")]
    with pytest.raises(InputError, match="Two recipes of the study are called bi_encoder cosent"):
        definition.expand({"recipes": twice, "corpora": ["faq"], "seeds": [1]}, {})


def test_variants_that_an_override_makes_equal_are_one(make_recipe):
    """Fails if `--set model_name_or_path=mini` trains the same twice, under the names of two other encoders."""
    variants = {"BERT": {"model_name_or_path": "a"}, "RoBERTa": {"model_name_or_path": "b"}}
    content = {"recipes": [make_recipe("cosent")], "corpora": ["faq"], "seeds": [1], "variants": variants}
    assert [run.method.name for run in definition.expand(content, {})] == ["cosent BERT", "cosent RoBERTa"]
    (run,) = definition.expand(content, {"model_name_or_path": "mini"})
    assert run.method == Method("bi_encoder", "cosent") and run.flags == {"model_name_or_path": "mini"}


def test_recipes_of_one_name_stay_apart(make_recipe):
    """Fails if the cosent of two towers share one file, so that the second overwrites the first."""
    towers = ("bi_encoder", "cross_encoder")
    recipes = [make_recipe(f"{tower}/cosent", f"tower: {tower}\n") for tower in towers]
    runs = definition.expand({"recipes": recipes, "corpora": [["x/lcqmc", "nli"]], "seeds": [1]}, {})
    assert [run.method for run in runs] == [Method(tower, "cosent", names_tower=True) for tower in towers]
    assert [run.name for run in runs] == ["bi_encoder-cosent-lcqmc-nli-1", "cross_encoder-cosent-lcqmc-nli-1"]


def test_time_left_counts_pairs(make_corpus, make_recipe, pairs, tmp_path):
    """Fails if a run on 64 pairs is expected to last as long as one on 10: 6 epochs of 64, of 10, and unknown."""
    corpus = make_corpus({"train": pairs})
    content = {"recipes": [make_recipe("cosent", "num_train_epochs: 6\n")], "corpora": [corpus.name], "seeds": [1]}
    whole, part = definition.expand(content, {})[0], definition.expand(content | {"seeds": [2]}, {"limit_train": 10})[0]
    assert (definition.work(whole, str(corpus.parent)), definition.work(part, str(corpus.parent))) == (384, 60)
    assert definition.work(whole, str(tmp_path)) == 1
    progress = Progress({whole: 384, part: 60})
    progress.advance(whole, 0.5)
    progress.advance(part, 1.0, finished=True)
    assert progress.bar.n == 252 and progress.description() == "1/2 runs"
    progress.bar.close()


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
            *as_words({"use_cpu": True} | run.flags),
        ]
        parse(arguments, ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
    assert f"Launch: python -m cosent.study {path.relative_to(ROOT)}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recipes: []\ncorpus: [a]\nseeds: [1]\n", "unknown: corpus. missing: corpora."),
        ("[1, 2]", "missing: recipes, corpora, seeds."),
        ("recipes: [nowhere.yaml]\ncorpora: [a]\nseeds: [1]\n", "nowhere.yaml"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nflags: {learning_rat: 1}\n", "'learning_rat'. Did you mean"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: {seed: 1}}\n", "x: seed is set by the study"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nflags: {resume_from_checkpoint: auto}\n", "is set by the study"),
        ("recipes: [\n", "is not YAML"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: 5}\n", "x must be a mapping"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x/y: {}}\n", "'x/y' becomes part of a file name"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: {scale: [5, 10]}}\n", "scale takes one value"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\ntune: {scale: [5]}\n", "among two or more values"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\ntune: {scael: [5, 9]}\n", "'scael'. Did you mean"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nflags: {scale: 7}\ntune: {scale: [5, 9]}\n", "and by flags, of"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\nvariants: {x: {scale: 7}}\ntune: {scale: [5, 9]}\n", "and by x, of"),
        ("recipes: []\ncorpora: [a]\nseeds: [1]\ntune_flags: {limit_train: 9}\n", "has tune_flags but no tune"),
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
    with pytest.raises(InputError, match="b.yaml"):
        definition.read_study(str(tmp_path / "b.yaml"))
    with pytest.raises(InputError, match="takes KEY=VALUE"):
        definition.settings_of(["pooling"], "b.yaml")
    with pytest.raises(InputError, match="no flag 'poling'"):
        definition.settings_of(["poling=cls"], "b.yaml")


def test_results_of_the_first_version_are_recognised(make_recipe, tmp_path):
    """Fails if a study repeats hours of runs, since a flag was recorded under its old name or as `a,b`."""
    recipe = make_recipe("cosent", "loss: sbert\nfeatures: [u, v]\n")
    content = {"recipes": [recipe], "corpora": [["faq", "nli"]], "seeds": [1]}
    (run,) = definition.expand(content | {"flags": {"packing": False, "num_train_epochs": 6}}, {})
    assert run.corpus == "faq,nli" and run.name == "cosent-faq-nli-1"
    settings = {"loss": "sbert", "features": "u,v", "no_packing": True, "num_train_epochs": 6.0}
    study = {"method": "cosent", "corpus": "faq,nli", "seed": 1, "flags": {"no_packing": True, "num_train_epochs": 6}}
    raw = {"study": study, "recipe": settings, "train_seconds": 1.0, "corpora": {}, "before": {}, "after": {}}
    raw |= {"versions": {}, "commit": None, "device": "CPU", "threads": 1, "speed": {}, "validation_curve": []}

    def recognised(**changes) -> bool:
        (tmp_path / "x.json").write_text(json.dumps(raw | {"recipe": settings | changes}), encoding="utf-8")
        return definition.has_settings_of(Result.read(tmp_path / "x.json"), run)

    assert recognised()
    assert not recognised(no_packing=False) and not recognised(features="u,v,|u-v|")


def test_epochs_decide_nothing_where_steps_are_given(monkeypatch):
    """Fails if a study of 240 steps runs again because its recipe takes another number of epochs since."""
    monkeypatch.chdir(ROOT)
    runs = {run.method: run for run in definition.expand(definition.read_study("recipes/studies/few_labels.yaml"), {})}
    result = read_results(Path("results/few_labels")).results[0]
    run = runs[result.method]
    for changes, recognised in (({"num_train_epochs": 99}, True), ({"max_steps": 99}, False)):
        changed = replace(run, flags=run.flags | changes)
        assert definition.has_settings_of(result, changed) is recognised


def test_shipped_results_are_those_of_the_shipped_studies(monkeypatch):
    """Fails if running a shipped study again would move its own results aside."""
    monkeypatch.chdir(ROOT)
    recognised = 0
    folders = sorted(path.parent for path in (ROOT / "results").glob("*/study.yaml"))
    for folder in (folder for folder in folders if not folder.name.startswith("teach_")):  # of cosent teach, no study
        study = definition.read_study(f"recipes/studies/{folder.name}.yaml")
        expanded = definition.expand(study, {})
        expanded = list(choose(study, expanded, folder)[0]) if "tune" in study else expanded
        runs = {(run.method, run.corpus): run for run in expanded}
        for result in read_results(folder).results:
            assert definition.has_settings_of(result, runs[result.method, result.trained_on]), result.file
            recognised += 1
    assert recognised >= 40


def test_values_that_are_the_same():
    """Fails if a study repeats its runs at every call, since a prompt with a comma is recorded as a list of one."""
    assert definition.same(["检索, 相似："], "检索, 相似：") and definition.same("检索, 相似：", ["检索, 相似："])
    assert definition.same(["u", "v"], "u,v") and definition.same([1.0], 1)
    assert not definition.same(["一", "二"], ["一", "三"]) and not definition.same(["一", "一"], "一")
