"""What `make imports` cannot say of imports; the layers are contracts in pyproject.toml."""

import ast
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
    assert set().union(*(imported(path, "cosent") for path in SCRIPTS)) == {"schema", "errors"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_data_scripts_share_only_the_contract(path):
    """Fails if preparing data needs torch, or training code changes what a prepared corpus is."""
    assert imported(path, "cosent") <= {"schema", "errors"}
