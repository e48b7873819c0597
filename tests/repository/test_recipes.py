"""Every shipped recipe must run: keys that exist, values that parse, a loss that takes them, a header that helps."""

import re
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from cosent.data_scripts.corpora import CORPORA

from cosent.cli import arguments_of
from cosent.comparing.runs import expand, read_study
from cosent.data.corpus import Manifest
from cosent.flags import parse
from cosent.jobs import distill
from cosent.losses import LOSSES
from cosent.training.arguments import TRAIN_ARGUMENTS
from cosent.training.objective import build_objective
from lab.benchmarks.memory import estimate

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*_encoder/*.yaml"))
STUDENT_RECIPES = sorted((ROOT / "recipes").glob("student/*.yaml"))


def check_training(recipe: Path, output: Path) -> None:
    """The recipe parses, and its loss takes labels and tower."""
    arguments = ["--config", str(recipe), "--corpus", "stsb", "--output_dir", str(output), "--use_cpu", "true"]
    if recipe in STUDENT_RECIPES:
        parse(arguments, *arguments_of(distill.main))
        return
    model_args, _, _, loss_args, _ = parse(arguments, *TRAIN_ARGUMENTS)
    assert model_args.tower == recipe.parent.name
    kinds = {"sbert_joint": {"binary": 1.0, "nli": 2.0}, "ce3": {"nli": 2.0}}.get(loss_args.loss, {"binary": 1.0})
    manifests = [Manifest(kind, kind, 0.0, highest, {"bi_encoder": 64}, {}) for kind, highest in kinds.items()]
    objective = build_objective(LOSSES[loss_args.loss], loss_args.parameters(), manifests, model_args.tower)
    if model_args.tower == "cross_encoder":
        assert objective.classes == {"ce": 2, "ce3": 3}.get(loss_args.loss, 1)
    else:
        assert (objective.head(8, seed=1) is None) == ("logits" not in objective.outputs)


def check_text(recipe: Path) -> None:
    """The header says what to expect, where it runs and how it is launched; keys are sorted inside their group."""
    header, *groups = recipe.read_text(encoding="utf-8").split("\n\n")
    missing = [word for word in ("Expected:", "Device:", "Launch:", "Override:") if word not in header]
    assert not missing, missing
    launch = next(line for line in header.splitlines() if "Launch:" in line)
    assert f"--config {recipe.relative_to(ROOT)}" in launch
    if "--launch " in launch:
        assert (ROOT / f"recipes/accelerate/{launch.split('--launch ')[1].split()[0]}.yaml").is_file()
    for group in groups:
        keys = [line.split(":")[0] for line in group.splitlines() if line and not line.startswith("#")]
        assert keys == sorted(keys), keys


def test_recipes(tmp_path):
    """Fails if a shipped recipe stops before the first step, helps no reader, or cannot be compared with others."""
    assert len(RECIPES) >= 18 and {recipe.parent.name for recipe in RECIPES} == {"bi_encoder", "cross_encoder"}
    assert len(STUDENT_RECIPES) == 5
    problems = []
    for recipe in (*RECIPES, *STUDENT_RECIPES):
        try:
            check_training(recipe, tmp_path)
            check_text(recipe)
        except (Exception, SystemExit) as error:
            problems.append(f"{recipe.relative_to(ROOT)}: {type(error).__name__}: {error}")
    assert not problems, "\n".join(problems)


# Settings typed from the scripts of the published rows, https://github.com/bojone/CoSENT. Their encoder is BERT-base or
# RoBERTa-wwm with dropout 0.1. Those for accuracy choose the epoch by it. They do not clip gradients: the studies that
# repeat their tables do not either, the recipes alone clip as any Trainer does.
OF_SCRIPTS = {
    "bi_encoder/cosent": ("cosent.py", {"pooling": "cls", "epochs": 5, "batch": 32, "scale": 20}),
    "bi_encoder/sbert": (
        "sbert.py",
        {"pooling": "cls", "epochs": 5, "batch": 32, "classes": 2},
    ),
    "bi_encoder/nli": (
        "cosent_nli.py",
        {"pooling": "cls", "steps": 50_000, "evaluated": 5_000, "batch": 64, "scale": 20, "tokens": 64},
    ),
    "cross_encoder/cosent": ("accuracy/interact_cosent.py", {"segments": "zero", "epochs": 5, "batch": 64, "scale": 1}),
    "cross_encoder/ce": ("accuracy/interact.py", {"segments": "zero", "epochs": 5, "batch": 32, "classes": 2}),
}
OF_ANGLE = {  # https://github.com/SeanLee97/AnglE, examples/Angle-LCQMC.ipynb
    **{"pooling": "cls", "max_length": 128, "per_device_train_batch_size": 64, "num_train_epochs": 5},
    **{"learning_rate": 3e-5, "lr_scheduler_type": "linear", "warmup_steps": 0, "max_grad_norm": 1.0},
    **{"loss": "angle", "scale": 20, "loss_args": ["angle_scale=1.0", "cosine_weight=1.0", "in_batch_weight=2.0"]},
}
OF_PAWSX = {  # kexue.fm 8847's loss in a blog's PyTorch replication
    **{"model_name_or_path": "hfl/chinese-bert-wwm-ext", "pooling": "mean", "max_length": 128},
    **{"per_device_train_batch_size": 128, "gradient_accumulation_steps": 1, "num_train_epochs": 20},
    **{"learning_rate": 1e-5, "warmup_steps": 0, "loss": "cosent", "scale": 20},
}
TOKENS = {"bi_encoder": {"pawsx": 128, "": 64}, "cross_encoder": {"pawsx": 256, "": 128}}


def test_recipes_of_published_rows_have_the_settings_of_their_scripts(tmp_path):
    """Fails if a baseline is weaker or stronger than the one whose row its recipe quotes."""
    graded = [Manifest("stsb", "graded", 0.0, 5.0, {}, {})]
    for name, (script, settings) in OF_SCRIPTS.items():
        recipe = ROOT / f"recipes/{name}.yaml"
        words = ["--config", str(recipe), "--corpus", "stsb", "--output_dir", str(tmp_path), "--use_cpu", "true"]
        model, _, _, loss, args = parse(words, *TRAIN_ARGUMENTS)
        manifests = [Manifest("lcqmc", "binary", 0.0, 1.0, {}, {})] if loss.loss == "ce" else graded
        objective = build_objective(LOSSES[loss.loss], loss.parameters(), manifests, model.tower)
        scale = {**LOSSES[loss.loss].hyper_parameters, **objective.function.keywords}.get("scale")
        ours = {"pooling": model.pooling, "segments": model.segment_ids, "scale": scale}
        ours |= {
            "tokens": model.max_length,
            "epochs": args.num_train_epochs,
            "steps": args.max_steps,
            "evaluated": args.eval_steps,
        }
        ours |= {"batch": args.per_device_train_batch_size, "classes": objective.classes}
        assert {key: ours[key] for key in settings} == settings, script
        assert (args.learning_rate, args.lr_scheduler_type, args.warmup_steps) == (2e-5, "constant", 0), script
        assert (args.weight_decay, args.gradient_accumulation_steps) == (0, 1), script
        assert f"bojone/CoSENT, {script}" in recipe.read_text(encoding="utf-8").replace("\n# ", " ")
    for tower, tokens in TOKENS.items():
        for corpus in ("atec", "bq", "lcqmc", "pawsx", "stsb"):
            length = CORPORA[corpus].max_length[tower == "cross_encoder"]
            assert length == tokens.get(corpus, tokens[""]), (tower, corpus)


@pytest.mark.parametrize(("name", "settings"), [("angle", OF_ANGLE), ("pawsx", OF_PAWSX)])
def test_a_recipe_has_the_settings_of_its_source(name, settings, tmp_path):
    """Fails if AnglE, or CoSENT on PAWSX, is trained otherwise than for the figures that the header quotes."""
    recipe = str(ROOT / f"recipes/bi_encoder/{name}.yaml")
    words = ["--config", recipe, "--corpus", "pawsx", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    ours = {key: value for each in parse(words, *TRAIN_ARGUMENTS) for key, value in vars(each).items()}
    assert {key: ours[key] for key in settings} == settings


@pytest.mark.parametrize(("name", "clipped"), [("native", {"angle"}), ("nli_transfer", set()), ("interactive", set())])
def test_studies_of_published_tables_clip_only_where_the_scripts_do(name, clipped):
    """Fails if a published table is repeated with clipped gradients, or that of NLI with longer sentences."""
    runs = expand(read_study(str(ROOT / f"recipes/studies/{name}.yaml")), {})
    methods = {run.method.split()[0]: run.flags for run in runs}
    assert {method for method, flags in methods.items() if flags.get("max_grad_norm") != 0} == clipped
    if name == "nli_transfer":
        assert {(flags["max_length"], flags["max_steps"]) for flags in methods.values()} == {(64, 50_000)}


def test_every_loss_is_in_the_table():
    """Fails if a loss can only be found by reading the source. `test_every_loss_reaches_the_weights` trains each."""
    page = (ROOT / "docs/losses.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| (?!\w+=)", page, re.MULTILINE)) >= set(LOSSES)


def test_accelerate_takes_every_configuration():
    """Fails if a shipped file has a key that accelerate refuses, or asks for what its name does not say."""
    kinds = {"fsdp": "FSDP", "deepspeed_zero2": "DEEPSPEED", "ddp": "MULTI_GPU", "multi_node": "MULTI_GPU"}
    options = set(launch_command_parser()._option_string_actions)
    configs = {path.stem: path for path in (ROOT / "recipes/accelerate").glob("*.yaml")}
    assert configs.keys() > kinds.keys()
    for name, path in configs.items():
        loaded = load_config_from_file(str(path))
        assert loaded.distributed_type == kinds.get(name, "NO"), name
        assert (loaded.num_machines > 1) == (name == "multi_node"), name
        assert (loaded.num_processes > 1) == (name in kinds), name
        assert "\n# Launch: " in "\n" + path.read_text(encoding="utf-8"), name
        sections = {**(loaded.fsdp_config or {}), **(loaded.deepspeed_config or {})}
        assert {f"--{key}" for key in sections} <= options, name


def header(recipe: Path) -> str:
    return recipe.read_text(encoding="utf-8").split("\n\n")[0].replace("\n# ", " ")


@pytest.mark.matrix
def test_recipes_announce_their_memory():
    """Fails if the figures in a header are not those of its settings any more."""
    announced = [recipe for recipe in RECIPES if "GB estimated" in header(recipe)]
    assert len(announced) > 3
    for recipe in announced:
        parts = {name: size / 1e9 for name, size in estimate(yaml.safe_load(recipe.read_text("utf-8"))).items()}
        pattern = r"with (\d+) GB: ([\d.]+) GB estimated .*weights ([\d.]+), gradients and optimizer ([\d.]+), "
        said = re.search(pattern + r"activations ([\d.]+)", header(recipe))
        device, *figures = map(float, said.groups())
        computed = [sum(parts.values()), parts["weights"], parts["gradients and optimizer"], parts["activations"]]
        assert figures == pytest.approx(computed, abs=0.06), recipe
        assert figures[0] < 0.85 * device, recipe
