"""Every shipped recipe must run: keys that exist, values that parse, a loss that takes them, a header that helps."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from cosent import distill
from cosent.cli import parse
from cosent.data.manifest import Manifest
from cosent.losses import LOSSES
from cosent.training.arguments import TRAIN_ARGUMENTS
from cosent.training.objective import build_objective

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*_encoder/*.yaml"))
STUDENT_RECIPES = sorted((ROOT / "recipes").glob("student/*.yaml"))


def test_recipes_are_found():
    """Fails if the folder moved and every test below passes on nothing."""
    assert len(RECIPES) >= 18 and {recipe.parent.name for recipe in RECIPES} == {"bi_encoder", "cross_encoder"}
    assert len(STUDENT_RECIPES) == 3


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_what_its_loss_takes(recipe, tmp_path):
    """Fails if a shipped recipe stops with an error before the first step."""
    arguments = ["--config", str(recipe), "--corpus", "stsb", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    model_args, _, _, _, loss_args, _ = parse(arguments, *TRAIN_ARGUMENTS)
    assert model_args.tower == recipe.parent.name
    kinds = {"sbert_joint": {"binary": 1.0, "nli": 2.0}, "ce3": {"nli": 2.0}}.get(loss_args.loss, {"binary": 1.0})
    manifests = [Manifest(kind, kind, 0.0, highest, {"bi_encoder": 64}, {}) for kind, highest in kinds.items()]
    objective = build_objective(loss_args.loss, loss_args.parameters(), manifests, model_args.tower)
    if model_args.tower == "cross_encoder":
        assert objective.classes == {"ce": 2, "ce3": 3}.get(loss_args.loss, 1)
    else:
        assert (objective.head(8, loss_args.features, seed=1) is None) == (objective.reads != "logits")


@pytest.mark.parametrize("recipe", STUDENT_RECIPES, ids=lambda path: path.stem)
def test_a_student_recipe_parses(recipe, tmp_path):
    """Fails if a recipe of a student stops with an error before the first step."""
    arguments = ["--config", str(recipe), "--corpus", "lcqmc", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    parse(arguments, *distill.ARGUMENTS)


def test_every_loss_has_a_recipe():
    """Fails if a loss can only be found by reading the source."""
    assert {yaml.safe_load(recipe.read_text())["loss"] for recipe in RECIPES} >= set(LOSSES)


@pytest.mark.parametrize("recipe", [*RECIPES, *STUDENT_RECIPES], ids=lambda path: path.stem)
def test_a_recipe_header_helps(recipe):
    """Fails if a reader does not learn what is reproduced, what to expect, where it runs and how it is launched."""
    header = [line for line in recipe.read_text().split("\n\n")[0].splitlines() if line.startswith("#")]
    for word in ("Expected:", "Device:", "Launch:", "Override:"):
        assert any(word in line for line in header), word
    launch = next(line for line in header if "Launch:" in line)
    assert f"--config {recipe.relative_to(ROOT)}" in launch
    if "--launch " in launch:
        assert (ROOT / f"recipes/accelerate/{launch.split('--launch ')[1].split()[0]}.yaml").is_file()


@pytest.mark.parametrize("recipe", [*RECIPES, *STUDENT_RECIPES], ids=lambda path: path.stem)
def test_keys_are_sorted_inside_their_group(recipe):
    """Fails if two recipes cannot be compared side by side."""
    for group in recipe.read_text().split("\n\n")[1:]:
        keys = [line.split(":")[0] for line in group.splitlines() if line and not line.startswith("#")]
        assert keys == sorted(keys), keys


@pytest.mark.parametrize("config", sorted((ROOT / "recipes/accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_takes_the_configuration(config):
    """Fails if a shipped file has a key that accelerate refuses, or asks for what its name does not say."""
    loaded = load_config_from_file(str(config))
    kinds = {"fsdp": "FSDP", "deepspeed_zero2": "DEEPSPEED", "ddp": "MULTI_GPU", "multi_node": "MULTI_GPU"}
    assert loaded.distributed_type == kinds.get(config.stem, "NO")
    assert (loaded.num_machines > 1) == (config.stem == "multi_node")
    assert (loaded.num_processes > 1) == (config.stem in kinds)
    assert any(line.startswith("# Launch: ") for line in config.read_text().splitlines())
    sections = {**(loaded.fsdp_config or {}), **(loaded.deepspeed_config or {})}
    assert {f"--{name}" for name in sections} <= set(launch_command_parser()._option_string_actions)
