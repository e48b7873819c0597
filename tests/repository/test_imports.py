"""What `make imports` cannot say of imports; the layers are contracts in pyproject.toml."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "data_scripts").rglob("*.py"))


def imported(path: Path, package: str) -> set[str]:
    """Modules of a package that a file names in an import, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        else:
            continue
        names |= {name.split(".")[1] for name in full if name.startswith(f"{package}.")}
    return names


def test_the_contract_is_imported():
    """Fails if the test below passes because it finds no import at all."""
    assert set().union(*(imported(path, "cosent") for path in SCRIPTS)) == {"data", "errors", "evaluation"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_data_scripts_share_only_the_contract(path):
    """Fails if preparing data needs torch, or training code changes what a prepared corpus is."""
    assert imported(path, "cosent") <= {"data", "errors", "evaluation"}


# A student names a class of transformers, whose own modules import accelerate.
@pytest.mark.parametrize("module, also", [("modeling.auto", ("accelerate",)), ("modeling.student", ())])
def test_models_load_without_what_trains_them(module, also):
    """Fails if whoever only encodes waits for datasets, peft or the Trainer, or cannot do without them."""
    heavy = ("datasets", "peft", "pandas", "transformers.trainer", "cosent.training", "cosent.data.pairs", *also)
    source = f"import sys, cosent.{module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
