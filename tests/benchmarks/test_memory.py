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


def test_recipes_know_the_size_of_their_model():
    """Fails if a header estimates a model that `benchmarks.memory` cannot build, or from another number of weights."""
    assert len(ANNOUNCED) == 5 and {RECIPES[path]["model_name_or_path"] for path in ANNOUNCED} <= set(CONFIGS)
    for path in ANNOUNCED:
        said = re.search(r"(\d+) M weights", header(path))
        with torch.device("meta"):
            model = build(RECIPES[path] | {"use_peft": False})
        if said is not None:
            assert round(sum(weight.numel() for weight in model.parameters()) / 1e6) == int(said[1]), path


@pytest.mark.matrix
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
