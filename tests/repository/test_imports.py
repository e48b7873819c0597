"""Arrows point one way: data_scripts share the contract alone, leaves import no sibling, jobs do not import jobs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/cosent"


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


@pytest.mark.parametrize("path", sorted((ROOT / "data_scripts").rglob("*.py")), ids=lambda path: path.stem)
def test_data_scripts_share_the_contract_alone(path):
    """Fails if preparing data needs torch, or training code changes what a prepared corpus is."""
    assert imported(path, "cosent") <= {"schema", "errors"}


def test_the_package_never_imports_the_data_scripts():
    """Fails if an installed package needs a folder that is not installed."""
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    assert not [path for path in files if imported(path, "data_scripts")]
