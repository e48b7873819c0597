"""The memory that recipes for published models announce is that of `benchmarks.memory`."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks.memory import CONFIGS, build, estimate

RECIPES = {
    path: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((Path(__file__).parents[2] / "recipes").glob("*_encoder/*.yaml"))
}


def header(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\n\n")[0].replace("\n# ", " ")


ANNOUNCED = [path for path in RECIPES if "GB estimated" in header(path)]


def test_recipes_announce_memory_of_models_whose_size_is_known():
    """Fails if the tests below check nothing, or a header estimates a model that `benchmarks.memory` cannot build."""
    assert len(ANNOUNCED) == 5
    assert {RECIPES[path]["model_name_or_path"] for path in ANNOUNCED} <= set(CONFIGS)


@pytest.mark.parametrize("path", ANNOUNCED, ids=lambda path: path.stem)
def test_a_recipe_knows_the_size_of_its_model(path):
    """Fails if a table of sizes here, from which memory is computed, is not that of the published model."""
    said = re.search(r"(\d+) M weights", header(path))
    with torch.device("meta"):
        model = build(RECIPES[path] | {"use_peft": False})
    if said is not None:
        assert round(sum(weight.numel() for weight in model.parameters()) / 1e6) == int(said[1])


@pytest.mark.slow
@pytest.mark.parametrize("path", ANNOUNCED, ids=lambda path: path.stem)
def test_a_recipe_announces_its_memory(path):
    """Fails if the figures in a header are not those of its settings any more."""
    parts = {name: size / 1e9 for name, size in estimate(RECIPES[path]).items()}
    said = re.search(r"with (\d+) GB: ([\d.]+) GB estimated .*weights ([\d.]+), gradients and optimizer ([\d.]+), "
                     r"activations ([\d.]+)", header(path))  # fmt: skip
    device, *figures = map(float, said.groups())
    computed = [sum(parts.values()), parts["weights"], parts["gradients and optimizer"], parts["activations"]]
    assert figures == pytest.approx(computed, abs=0.06)
    assert figures[0] < 0.85 * device
