"""A recipe gives the defaults, flags win, and nothing unknown is swallowed."""

from dataclasses import dataclass, field

import pytest

from cosent.cli import parse
from cosent.errors import InputError
from cosent.training.arguments import DataArguments, ModelArguments, PairTrainingArguments


@dataclass
class Arguments:
    corpus: str = field(metadata={"help": "required"})
    learning_rate: float = 0.1
    num_train_epochs: int = 3
    no_packing: bool = False


@pytest.fixture
def recipe(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path / "recipe.yaml")

    return write


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(recipe):
    """Fails if a user's flag is ignored in favour of the file."""
    path = recipe("corpus: stsb\nlearning_rate: 2.0e-05\nnum_train_epochs: 5\n")
    (args,) = parse(["--config", path, "--num_train_epochs", "7"], Arguments)
    assert args == Arguments(corpus="stsb", learning_rate=2e-5, num_train_epochs=7)


def test_a_float_without_a_point_is_still_a_float(recipe):
    """Fails on YAML's trap: 2e-5 without a point is a string to it."""
    (args,) = parse(["--config", recipe("corpus: stsb\nlearning_rate: 2e-5\n")], Arguments)
    assert args.learning_rate == 2e-5


def test_an_unknown_key_names_the_nearest_one(recipe):
    """Fails if a misspelt key is dropped and the run uses a default in silence."""
    with pytest.raises(InputError, match="unknown key 'learning_rat'. Did you mean 'learning_rate'"):
        parse(["--config", recipe("corpus: a\nlearning_rat: 1.0\n")], Arguments)


@pytest.mark.parametrize("flag", ["--learning_rat", "--learning-rats=3"])
def test_an_unknown_flag_names_the_nearest_one(flag):
    """Fails if argparse guesses an abbreviation or a misspelt flag is ignored."""
    with pytest.raises(InputError, match="Did you mean 'learning_rate'"):
        parse(["--corpus", "a", flag, "3"], Arguments)


def test_a_misspelt_required_flag_names_the_right_one():
    """Fails if pages of usage ask for --corpus, and say nothing of --corpsu."""
    with pytest.raises(InputError, match="'--corpsu'. Did you mean 'corpus'"):
        parse(["--corpsu", "stsb", "--output_dir", "x"], ModelArguments, DataArguments, PairTrainingArguments)


def test_the_negation_of_a_switch_is_known():
    """Fails if a spelling that transformers offers is called a mistake."""
    flags = ["--corpus", "stsb", "--output_dir", "x", "--no_load_best_model_at_end", "--use_cpu", "true"]
    assert not parse(flags, ModelArguments, DataArguments, PairTrainingArguments)[2].load_best_model_at_end


def test_a_key_that_stands_twice(recipe):
    """Fails if YAML keeps the last of two values without a word."""
    with pytest.raises(InputError, match="'corpus' stands twice"):
        parse(["--config", recipe("corpus: a\ncorpus: b\n")], Arguments)


@pytest.mark.parametrize("text", ["- corpus", "corpus: {name: a}", "corpus: [a"])
def test_a_file_that_is_no_recipe(recipe, text):
    """Fails if nested or broken YAML ends in a stack trace."""
    with pytest.raises(InputError, match="flat list|not YAML"):
        parse(["--config", recipe(text)], Arguments)


def test_a_value_that_is_no_choice(recipe):
    """Fails if argparse checks the choices of flags alone: a recipe's `tower: cross_encoder` would train another."""

    @dataclass
    class Tower:
        tower: str = field(default="bi_encoder", metadata={"choices": ["bi_encoder"]})

    with pytest.raises(InputError, match="tower must be one of bi_encoder, got 'cross_encoder'"):
        parse(["--config", recipe("tower: cross_encoder\n")], Tower)


def test_a_missing_recipe():
    """Fails if a wrong path is not said to be one."""
    with pytest.raises(InputError, match="There is no recipe at nowhere.yaml"):
        parse(["--config", "nowhere.yaml"], Arguments)
