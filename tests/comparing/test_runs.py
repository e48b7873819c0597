"""The file of a study is checked, and expanded to runs with names and flags of their own."""

from pathlib import Path

import pytest

from cosent.comparing.runs import expand, read_study, settings_of
from cosent.errors import InputError
from cosent.flags import as_words, parse
from cosent.training.arguments import TRAIN_ARGUMENTS

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "recipes/studies").glob("*.yaml"))


def test_runs_have_names_of_their_own(make_recipe):
    """Fails if two runs share a folder, or an override is lost."""
    recipe = make_recipe("a/cosent")
    with pytest.raises(InputError, match="cosent-faq-1"):
        expand({"recipes": [recipe], "corpora": ["v1/faq", "v2/faq"], "seeds": [1]}, {})
    with pytest.raises(InputError, match="bi_encoder-cosent-faq-1"):
        expand({"recipes": [recipe, make_recipe("b/cosent")], "corpora": ["faq"], "seeds": [1]}, {})
    towers = ("bi_encoder", "cross_encoder")
    recipes = [make_recipe(f"{tower}/cosent", f"tower: {tower}\n") for tower in towers]
    runs = expand({"recipes": recipes, "corpora": [["x/lcqmc", "nli"]], "seeds": [1]}, {})
    assert [run.name for run in runs] == ["bi_encoder-cosent-lcqmc-nli-1", "cross_encoder-cosent-lcqmc-nli-1"]
    variants = {"BERT": {"model_name_or_path": "a"}, "RoBERTa": {"model_name_or_path": "b"}}
    content = {"recipes": [make_recipe("cosent")], "corpora": ["faq"], "seeds": [1], "variants": variants}
    assert [run.method for run in expand(content, {})] == ["cosent BERT", "cosent RoBERTa"]
    assert [run.flags for run in expand(content, {"model_name_or_path": "mini"})] == [
        {"model_name_or_path": "mini"}
    ] * 2


def test_a_recipe_may_have_a_name_and_flags_of_its_own(tmp_path):
    """Fails if two heads of one recipe share a name, or a flag of one loss reaches another, which would refuse it."""
    file = tmp_path / "a.yaml"
    heads = "{recipe: bi_encoder/sbert, name: sbert_six, sbert_classes: 6, scale: 3}"
    start = f"recipes: [bi_encoder/sbert, {heads}]\ncorpora: [a]\nseeds: [1]\n"
    file.write_text(start + "flags: {scale: 2, max_steps: 1}\nvariants: {x: {scale: 4}, y: {}}\n")
    runs = {run.method: run.settings for run in expand(read_study(str(file)), {"max_steps": 5})}
    assert {name: (flags["scale"], flags.get("sbert_classes"), flags["max_steps"]) for name, flags in runs.items()} == {
        "sbert x": (4.0, None, 5),
        "sbert y": (2.0, None, 5),
        "sbert_six x": (4.0, 6, 5),
        "sbert_six y": (3.0, 6, 5),
    }
    for wrong, named in (("{name: a}", "recipe: FILE"), ("{recipe: sbert, scal: 1}", "'scal'")):
        file.write_text(f"recipes: [{wrong}]\ncorpora: [a]\nseeds: [1]\n")
        with pytest.raises(InputError, match=named):
            read_study(str(file))


@pytest.mark.slow
def test_shipped_studies_are_whole(monkeypatch, tmp_path):
    """Fails if a shipped study names a recipe or flag that is not there, or has no launch line."""
    monkeypatch.chdir(ROOT)
    assert 6 <= len(STUDIES) <= 8, "those of this repository's own questions are in lab/studies.yaml"
    for path in STUDIES:
        runs = expand(read_study(str(path)), {})
        assert len({run.name for run in runs}) == len(runs) > 0
        for run in {run.method: run for run in runs}.values():
            words = ["--config", run.recipe, "--corpus", *run.corpora, "--output_dir", str(tmp_path)]
            parse([*words, *as_words({"use_cpu": True} | run.flags)], *TRAIN_ARGUMENTS)
        assert f"Launch: cosent study {path.relative_to(ROOT)}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("recipes: []\ncorpus: [a]\nseeds: [1]\n", ["corpus", "corpora"]),
        ("recipes: [cosent]\ncorpora: a\nseeds: [1]\n", ["corpora", "'a'"]),
        ("recipes: [nowhere.yaml]\ncorpora: [a]\nseeds: [1]\n", ["nowhere.yaml"]),
        (
            "recipes: [cosent]\ncorpora: [a]\nseeds: [1]\nflags: {learning_rat: 1}\n",
            ["'learning_rat'", "'learning_rate'"],
        ),
        ("recipes: [cosent]\ncorpora: [a]\nseeds: [1]\nvariants: {x: {seed: 1}}\n", ["x: seed"]),
        ("recipes: [cosent]\ncorpora: [a]\nseeds: [1]\ntune: {scale: 5}\n", ["tune", "'5'"]),
    ],
)
def test_a_study_that_is_wrong(tmp_path, text, named):
    """Fails if a misspelt key or flag makes a study run something else than meant."""
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        read_study(str(tmp_path / "a.yaml"))
    assert all(word in str(error.value) for word in named)
    with pytest.raises(InputError, match="KEY=VALUE"):
        settings_of(["pooling"], "b.yaml")
