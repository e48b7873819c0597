"""A recipe gives the defaults, flags win, and nothing unknown is swallowed."""

import shlex
from collections import defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pytest
from transformers import HfArgumentParser

from cosent import cli
from cosent.errors import InputError
from cosent.flags import HIDDEN, REQUIRED, SHOWN, Parser, as_words, flags_of, option, parse, recipe_file
from cosent.jobs.arguments import ModelSource
from cosent.training.arguments import TRAIN_ARGUMENTS, LossArguments, ModelArguments


@dataclass
class Arguments:
    corpus: str = option(REQUIRED, "required")
    learning_rate: float = 0.1
    num_train_epochs: int = 3
    packing: bool = True
    seeds: list[int] | None = None
    features: list[str] = option(["u"], "parts of a head")
    tower: str = option("bi_encoder", "a choice", ["bi_encoder"])
    texts: list[str] | None = option(None, "sentences", positional=True)
    config: str | None = field(default=None, compare=False)


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(recipe):
    """Fails if a user's flag is ignored in favour of the file, or 2e-5, which is text to YAML, is no number."""
    path = recipe("corpus: stsb\nlearning_rate: 2e-5\nnum_train_epochs: 5\n")
    (args,) = parse(["--config", path, "--num_train_epochs", "7"], Arguments)
    assert args == Arguments(corpus="stsb", learning_rate=2e-5, num_train_epochs=7)
    for word, value in (("-1e-5", -1e-5), ("-.5e+2", -50.0), ("1_000", 1000.0)):  # argparse takes -1e-5 for a flag
        assert parse(["--corpus", "a", "--learning_rate", word], Arguments)[0].learning_rate == value
    with pytest.raises(InputError, match="--corpus is missing"):
        parse([], Arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("corpus: a\nlearning_rat: 1.0\n", "unknown key 'learning_rat'. Did you mean 'learning_rate'"),
        ("corpus: a\ncorpus: b\n", "'corpus' occurs twice"),
        ("- corpus", "recipe.yaml"),
        ("~: x", "recipe.yaml: unknown key None"),
        ("corpus: {name: a}", "recipe.yaml"),
        ("corpus: [a", "recipe.yaml"),
        ("corpus: a\nlearning_rate: [1, 2]\n", r"learning_rate.*\[1, 2\]"),
        ("corpus: a\ntower: cross_encoder\n", "recipe.yaml: .*--tower.*'cross_encoder'.*bi_encoder"),
    ],
)
def test_a_recipe_that_is_wrong(recipe, text, message):
    """Fails if a misspelt key is dropped, a choice goes unchecked, or broken YAML ends in a trace."""
    with pytest.raises(InputError, match=message):
        parse(["--config", recipe(text)], Arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learning_rat", "3"], "Did you mean '--learning_rate'"),
        (["--epochs", "3"], "--num_train_epochs"),
        (["--warmup_ratio", "0.1"], "'--warmup_ratio'.*--warmup_steps 0.1"),
        (["--batch-size=64"], "'--batch_size.*--per_device_train_batch_size"),
        (["--evaluation_strategy", "epoch"], "--eval_strategy"),
        (["--dataloader_in_order"], "'--dataloader_in_order'.*leave it out"),
        (["--lr", "3", "--epochs=3", "--corpsu", "a"], "'--lr'.*'--epochs'.*'--corpsu'.*'--corpus'"),  # all at once
        (["a.txt", "--learning_rate", "1"], "'a.txt'"),
        (["--num_train_epochs", "many"], "--num_train_epochs.*'many'"),
        (["--use_cpu", "perhaps"], "--use_cpu.*'perhaps'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--seed", "1", "--seed=2"], "--seed is given twice"),
        (["--retrieval", "--no_retrieval"], "--no_retrieval is given twice"),
        (["--corpus", "a", "--output_dir", "x", "--use_cpu", "--learning_rate", "-1e-5"], "--learning_rate must not"),
        (["--corpus", "a", "--output_dir", "x", "--use_cpu", "--weight_decay", "nan"], "--weight_decay must not"),
    ],
)
def test_a_wrong_command_line_is_one_message(flags, message):
    """Fails if a typing mistake is ignored, guessed at, or ends in a page of usage or a traceback."""
    with pytest.raises(InputError, match=message):
        parse(flags, *TRAIN_ARGUMENTS)


def test_a_model_has_two_names():
    """Fails if `--model` of inference is refused by a training, or `--model_name_or_path` of training by inference."""
    assert parse(["--model", "similar"], ModelArguments)[0].model_name_or_path == "similar"
    assert parse(["--model_name_or_path", "mini"], ModelSource)[0].model == "mini"
    with pytest.raises(InputError, match="twice"):
        parse(["--model", "similar", "--model_name_or_path", "mini"], ModelArguments)


def test_a_recipe_is_found_by_name(tmp_path, monkeypatch):
    """Fails if shipped recipes are found from the root of a clone only, or a name means another recipe than it says."""
    monkeypatch.chdir(tmp_path)
    shipped = [
        recipe_file(name) for name in ("cosent_mini", "bi_encoder/cosent_mini", "recipes/bi_encoder/cosent_mini.yaml")
    ]
    assert len(set(shipped)) == 1 and Path(shipped[0]).parts[-2:] == ("bi_encoder", "cosent_mini.yaml")
    assert Path(recipe_file("cross_encoder/cosent_mini")).parts[-2:] == ("cross_encoder", "cosent_mini.yaml")
    assert Path(recipe_file("cpu.yaml", "accelerate")).parts[-2:] == ("accelerate", "cpu.yaml")
    Path("cosent_mini").write_text("corpus: a", encoding="utf-8")
    assert recipe_file("cosent_mini") == "cosent_mini"
    with pytest.raises(InputError, match="'cosent_mini'"):
        recipe_file("cosent_mnii")


def test_a_list_is_separated_by_spaces(recipe):
    """Fails if two corpora become one of a long name, a recipe's list one string, or a sentence may hold no comma."""
    (flags,) = parse(["--corpus", "a", "--seeds", "1", "2", "--features", "u", "|u-v|"], Arguments)
    assert (flags.seeds, flags.features, flags.texts) == ([1, 2], ["u", "|u-v|"], None)
    (yaml,) = parse(["--config", recipe("corpus: a\nseeds: [1, 2]\nfeatures: [u, '|u-v|']\n")], Arguments)
    assert yaml == flags
    assert parse(["--config", recipe("corpus: a\nfeatures: uv\n")], Arguments)[0].features == ["uv"]
    assert parse(as_words({"corpus": "a", "seeds": [1, 2], "features": ["u", "|u-v|"]}), Arguments)[0] == flags
    assert parse(["--corpus", "a", "Hello, world", "b"], Arguments)[0].texts == ["Hello, world", "b"]
    texts = ["--no", "--corpus", "-1e-5"]
    assert parse(["--corpus", "a", "--", *texts], Arguments)[0].texts == texts


@pytest.mark.parametrize(
    ("flags", "packing"),
    [
        ([], True),
        (["--no_packing"], False),
        (["--packing", "false"], False),
        (["--packing"], True),
        (["--no-packing"], False),
        (["--packing=no"], False),
        (["--packing", "OFF"], False),
    ],
)
def test_a_switch_has_every_spelling(flags, packing):
    """Fails if `--packing false` packs, or the switch cannot be turned off in one word."""
    assert parse(["--corpus", "a", *flags], Arguments)[0].packing is packing


@pytest.mark.parametrize("word", ["no", "1e3", "010", "1:30", "2024-01-02", "true", "0x1f", "null_", "~/x"])
def test_text_in_a_recipe_is_the_text_that_is_written(recipe, word):
    """Fails if YAML 1.1 reads `eval_strategy: no` as false, 010 as 8, 1:30 as 90 and a date as a date."""
    (from_recipe,) = parse(["--config", recipe(f"corpus: {word}\n")], Arguments)
    assert from_recipe == parse(["--corpus", word], Arguments)[0] and from_recipe.corpus == word


@pytest.mark.parametrize("word", ["null", "~", ""])
def test_null_is_only_for_what_may_be_none(recipe, word):
    """Fails if `num_train_epochs: null` reaches training as None, or as the text null."""
    assert parse(["--config", recipe(f"corpus: a\nseeds: {word}\n")], Arguments)[0].seeds is None
    with pytest.raises(InputError, match="recipe.yaml: num_train_epochs"):
        parse(["--config", recipe(f"corpus: a\nnum_train_epochs: {word}\n")], Arguments)


def test_values_are_those_of_the_library():
    """Fails if a flag of TrainingArguments means something else here than in other programs that use transformers."""
    classes = [cls for cls in TRAIN_ARGUMENTS if cls is not LossArguments]  # `str | list[str]`, which theirs refuses
    words = shlex.split(
        "--corpus a b --output_dir x --use_cpu --learning_rate 2e-5 --bf16 no --lr_scheduler_type cosine "
        """--lr_scheduler_kwargs '{"num_cycles": 1}' --warmup_steps 0.1 --optim adamw_torch --gradient_checkpointing """
        "--gradient_checkpointing_kwargs {} --report_to none --no_retrieval "
        "--disable_tqdm true --save_strategy epoch --eval_steps 5 --use_peft --lora_target_modules query value"
    )
    library = HfArgumentParser(classes).parse_args_into_dataclasses(words, look_for_args_file=False)
    for ours, theirs in zip(parse(words, *classes), library, strict=True):
        ours, theirs = (vars(given) | {"logging_dir": None, "distributed_state": None} for given in (ours, theirs))
        assert ours == theirs


def test_every_flag_has_a_help_text(monkeypatch):
    """Fails if `--help` stops with an error, as on a per cent sign, or leaves a flag of ours unexplained."""
    monkeypatch.setenv("COLUMNS", "1000")
    classes = TRAIN_ARGUMENTS
    text = Parser(*classes, program="train", all_flags=True).format_help()
    assert "--no_retrieval" in text and "(default: mini)" in text and "(default: all-linear)" in text
    hidden = {name for name, flag in flags_of(*classes).items() if flag.metadata["help"] == HIDDEN}
    assert {name for name in flags_of(*classes) if f"--{name} " not in text} == hidden


def test_help_of_training_is_short(monkeypatch):
    """Fails if a user looks for --learning_rate among two hundred flags of transformers, or a shown flag is renamed."""
    monkeypatch.setenv("COLUMNS", "80")
    short, long = (Parser(*TRAIN_ARGUMENTS, all_flags=wanted).format_help() for wanted in (False, True))
    assert all(f"  --{name} " in short for name in SHOWN) and len(short.splitlines()) <= 105
    assert [line.split()[0] for line in short.splitlines() if line.startswith("  --")][1:11] == [
        f"--{name}" for name in list(SHOWN)[:10]
    ]
    assert "--adam_beta1 " not in short and "--adam_beta1 " in long


# Names that mean different things in different jobs.
AMBIGUOUS = {
    *("corpus", "folder", "int8", "label_column", "max_length", "model", "model_name_or_path", "output", "overwrite"),
    *("queries", "rerank", "teacher", "text"),
}


def test_a_flag_is_described_in_the_same_words_by_every_job():
    """Fails if two jobs describe a flag that they share in different words, so that it seems to do different things."""
    texts = defaultdict(set)
    for job in cli.JOBS:
        for name, flag in flags_of(*cli.arguments_of(import_module(cli.module_of(job)).main)).items():
            if not flag.owner.__module__.startswith("transformers."):
                texts[name].add(flag.metadata["help"])
    assert len(texts) > 60 and all(map(all, texts.values()))
    assert {name for name, words in texts.items() if len(words) > 1} <= AMBIGUOUS
