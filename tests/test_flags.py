"""A value means the same in a recipe and on the command line; if these fail, a run has other settings than written."""

from dataclasses import dataclass

import pytest

from cosent.cli import as_words, option, parse
from cosent.errors import InputError
from cosent.mine import MineArguments
from cosent.study import read_study
from cosent.training.arguments import TRAIN_ARGUMENTS
from cosent.training.launches import settings_of


@dataclass
class Arguments:
    eval_strategy: str = option("epoch", "text")
    seed: int = option(42, "a number")
    learning_rate: float = option(0.1, "a number")
    packing: bool = option(True, "a switch")
    max_length: int | None = option(None, "a number, or none")
    weights: list[float] | None = option(None, "numbers")
    texts: list[str] | None = option(None, "sentences", positional=True, commas=True)


@pytest.mark.parametrize("word", ["no", "off", "1e3", "010", "1:30", "2024-01-02", "true", "0x1f", "null_", "~/x"])
def test_text_in_a_recipe_is_the_text_that_is_written(recipe, word):
    """YAML 1.1 reads `eval_strategy: no` as false, 010 as 8, 1:30 as 90 and a date as a date."""
    (from_recipe,) = parse(["--config", recipe(f"eval_strategy: {word}\n")], Arguments)
    (from_flag,) = parse(["--eval_strategy", word], Arguments)
    assert from_recipe == from_flag and from_flag.eval_strategy == word


@pytest.mark.parametrize("word", ["10", "010", "1_000", "+5"])
def test_numbers_in_a_recipe_are_decimal(recipe, word):
    (args,) = parse(["--config", recipe(f"seed: {word}\nweights: [{word}, 2]\n")], Arguments)
    assert args.seed == int(word) and args.weights == [int(word), 2]
    assert parse([f"--seed={word}"], Arguments)[0].seed == args.seed


@pytest.mark.parametrize("word", ["1:30", "0x1f", "0o17", ".inf", "1e3"])
def test_what_is_no_whole_number_is_refused_in_a_recipe_too(recipe, word):
    with pytest.raises(InputError, match="recipe.yaml: .*--seed.*int"):
        parse(["--config", recipe(f"seed: {word}\n")], Arguments)


@pytest.mark.parametrize("word", ["no", "No", "off", "false", "FALSE", '"no"'])
def test_switches_keep_the_words_of_yaml(recipe, word):
    assert parse(["--config", recipe(f"packing: {word}\n")], Arguments)[0].packing is False


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_null_is_only_for_what_may_be_none(recipe, word):
    """Fails if `seed: null` reaches training as None, or as the text null."""
    assert parse(["--config", recipe(f"max_length: {word}\n")], Arguments)[0].max_length is None
    with pytest.raises(InputError, match="recipe.yaml: seed"):
        parse(["--config", recipe(f"seed: {word}\n")], Arguments)
    with pytest.raises(InputError, match="recipe.yaml: corpus"):
        parse(["--config", recipe(f"corpus: {word}\n")], MineArguments)
    if word:
        with pytest.raises(InputError, match="recipe.yaml: weights"):
            parse(["--config", recipe(f"weights: [1, {word}]\n")], Arguments)


def test_a_study_reads_values_as_a_recipe_does(tmp_path, recipe):
    """Fails if `eval_strategy: no` in a study becomes `--eval_strategy=False`, or a key may occur twice."""
    text = (
        f"recipes: [{recipe('seed: 1')}]\ncorpora: [010]\nseeds: [1, 2]\nflags: {{eval_strategy: no, max_steps: 010}}\n"
    )
    (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
    study = read_study(str(tmp_path / "study.yaml"))
    assert study["flags"] == {"eval_strategy": "no", "max_steps": 10}
    assert (study["corpora"], study["seeds"]) == (["010"], [1, 2])
    assert as_words(study["flags"]) == ["--eval_strategy=no", "--max_steps=10"]
    assert settings_of(["eval_strategy=no", "packing=no", "corpus_weights=[2, 1]"], "x") == {
        "eval_strategy": "no", "packing": False, "corpus_weights": [2.0, 1.0]}  # fmt: skip
    (tmp_path / "study.yaml").write_text(text + "seeds: [3]\n", encoding="utf-8")
    with pytest.raises(InputError, match="'seeds' occurs twice"):
        read_study(str(tmp_path / "study.yaml"))
    (tmp_path / "study.yaml").write_text(text.replace("[1, 2]", "[one]"), encoding="utf-8")
    with pytest.raises(InputError, match="seeds must be a list of whole numbers"):
        read_study(str(tmp_path / "study.yaml"))


@pytest.mark.parametrize("word", ["-1e-5", "-1E5", "-.5e+2", "-2.5e-05"])
def test_negative_numbers_with_an_exponent_are_values(word):
    """argparse takes `-1e-5` for a flag and says that one argument is expected."""
    assert parse(["--learning_rate", word, "--weights", "1", word], Arguments)[0] == Arguments(
        learning_rate=float(word), weights=[1, float(word)])  # fmt: skip
    assert parse(["--", word, "--a-b"], Arguments)[0].texts == [word, "--a-b"]  # sentences stay as they are


@pytest.mark.parametrize("flag", ["--learning_rate", "--weight_decay"])
@pytest.mark.parametrize("word", ["-1e-5", "nan"])
def test_a_rate_below_0_is_refused_in_words(flag, word):
    """Fails if the optimizer ends in a traceback, after the corpora were tokenised."""
    with pytest.raises(InputError, match=f"{flag} must not be negative, got {float(word):g}"):
        parse(["--corpus", "a", "--output_dir", "x", "--use_cpu", flag, word], *TRAIN_ARGUMENTS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1", "--seed", "2"], "--seed is given twice"),
        (["--seed=1", "--seed", "1"], "--seed is given twice"),
        (["--learning-rate", "1", "--learning_rate", "1"], "--learning_rate is given twice"),
        (["--packing", "--no_packing"], "--no_packing is given twice"),
        (["--weights", "1", "--weights", "2"], "a list takes several values: --flag a b"),
        (["--config", "a.yaml", "--config", "b.yaml"], "--config is given twice"),
    ],
)
def test_a_flag_given_twice_is_refused(words, message):
    """Fails if a run takes the last of two values in silence."""
    with pytest.raises(InputError, match=message):
        parse(words, Arguments)


def test_a_sentence_may_repeat_what_looks_like_a_flag():
    assert parse(["--seed", "1", "--", "--seed", "--seed"], Arguments)[0].texts == ["--seed", "--seed"]
