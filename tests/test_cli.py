"""A recipe gives the defaults, flags win, and nothing unknown is swallowed."""

from dataclasses import dataclass, field

import pytest
from transformers import HfArgumentParser

from cosent.cli import parse, parser
from cosent.errors import InputError
from cosent.flags import REQUIRED, as_words, flags_of, option
from cosent.training.arguments import DataArguments, LossArguments, ModelArguments, PairTrainingArguments


@dataclass
class Arguments:
    corpus: str = option(REQUIRED, "required")
    learning_rate: float = 0.1
    num_train_epochs: int = 3
    packing: bool = True
    seeds: list[int] | None = None
    features: list[str] = option(["u"], "parts of a head")
    texts: list[str] | None = option(None, "sentences", positional=True, commas=True)


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


def test_a_list_is_separated_by_spaces(recipe):
    """Fails if two corpora become one of a long name, a recipe's list one string, or a single value its letters."""
    (flags,) = parse(["--corpus", "a", "--seeds", "1", "2", "--features", "u", "|u-v|"], Arguments)
    assert (flags.seeds, flags.features, flags.texts) == ([1, 2], ["u", "|u-v|"], None)
    (yaml,) = parse(["--config", recipe("corpus: a\nseeds: [1, 2]\nfeatures: [u, '|u-v|']\n")], Arguments)
    assert yaml == flags
    assert parse(["--config", recipe("corpus: a\nfeatures: uv\n")], Arguments)[0].features == ["uv"]
    assert parse(as_words({"corpus": "a", "seeds": [1, 2], "features": ["u", "|u-v|"]}), Arguments)[0] == flags


def test_a_list_with_commas_is_refused_with_the_right_spelling(recipe):
    """Fails if a habit of other programs trains on a corpus called `a,b`, or a sentence may not hold a comma."""
    with pytest.raises(InputError, match="--features is a list without commas, got 'u,v'. Write --features u v."):
        parse(["--corpus", "a", "--features", "u,v"], Arguments)
    with pytest.raises(InputError, match=r"features is a list without commas, .* Write a YAML list: \[u, v\]."):
        parse(["--config", recipe("corpus: a\nfeatures: u,v\n")], Arguments)
    with pytest.raises(InputError, match=r"learning_rate takes one value, got the list \[1, 2\]"):
        parse(["--config", recipe("corpus: a\nlearning_rate: [1, 2]\n")], Arguments)
    assert parse(["--corpus", "a", "Hello, world", "b"], Arguments)[0].texts == ["Hello, world", "b"]


@pytest.mark.parametrize(
    ("flags", "packing"),
    [([], True), (["--no_packing"], False), (["--packing", "false"], False), (["--packing"], True),
     (["--no-packing"], False), (["--packing=no"], False)],
)  # fmt: skip
def test_a_switch_has_every_spelling(flags, packing):
    """Fails if `--packing false` packs, or the switch cannot be turned off in one word."""
    assert parse(["--corpus", "a", *flags], Arguments)[0].packing is packing


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_train_epochs", "many"], "--num_train_epochs must be a whole number, got 'many'"),
        (["--packing", "perhaps"], "--packing must be true or false, got 'perhaps'"),
        (["--learning_rate"], "expected one argument"),
        (["--learning_rate", "1", "--config"], "expected one argument"),
        ([], "--corpus is missing: required"),
    ],
)
def test_a_wrong_value_is_one_message(flags, message):
    """Fails if a typing mistake ends in a page of usage or a traceback."""
    with pytest.raises(InputError, match=message):
        parse([*(["--corpus", "a"] if flags else []), *flags], Arguments)


def test_values_are_those_of_the_library():
    """Fails if a flag of TrainingArguments means something else here than in other programs that use transformers."""
    classes = (ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
    words = ["--corpus", "a", "b", "--output_dir", "x", "--use_cpu", "--learning_rate", "2e-5", "--bf16", "no"]
    words += ["--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", '{"num_cycles": 1}', "--warmup_steps", "0.1"]
    words += ["--optim", "adamw_torch", "--gradient_checkpointing", "--gradient_checkpointing_kwargs", "{}"]
    words += [
        "--report_to",
        "none",
        "--include_for_metrics",
        "inputs",
        "loss",
        "--no_packing",
        "--disable_tqdm",
        "true",
    ]
    words += ["--save_strategy", "epoch", "--eval_steps", "5", "--lora_target_modules", "query", "value"]
    library = HfArgumentParser(classes).parse_args_into_dataclasses(words, look_for_args_file=False)
    for ours, theirs in zip(parse(words, *classes), library, strict=True):
        ours, theirs = (vars(given) | {"logging_dir": None, "distributed_state": None} for given in (ours, theirs))
        assert ours == theirs


def test_every_flag_has_a_help_text():
    """Fails if `--help` stops with an error, as on a per cent sign, or leaves a flag of ours unexplained."""
    classes = (ModelArguments, DataArguments, LossArguments, PairTrainingArguments)
    text = parser(classes, "train", width=1000).format_help()
    assert "--no_packing" in text and "(default: mini)" in text and "(default: all-linear)" in text
    for flag in flags_of(*classes).values():
        assert f"--{flag.name} " in text
        assert flag.field.metadata["help"], flag.name
