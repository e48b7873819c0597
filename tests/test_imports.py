"""Arrows point one way: data_scripts share the contract alone, leaves import no sibling, jobs do not import jobs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/cosent"
# Each room may import from those on the lines above its own (and `schema` from everywhere).
ROOMS = [
    {"schema", "checks", "scores", "significance", "figures", "page", "unilm", "sampling"},
    {"losses", "heads", "metrics", "packing", "pooling", "onednn", "encoders", "records", "samplers"}
    | {"distributed", "grad_cache", "launching", "lora"},
    {"layout", "backbones", "encoding", "text", "results"},
    {"loading", "ranking"},
    {"modeling", "objectives", "vector_file", "data", "cli", "callbacks", "comparison", "diagnostics", "checkpoints"}
    | {"decoding"},
    {"cross_encoder", "arguments", "trainers", "pretraining", "student", "joined"},
    {"towers", "held_out", "plan", "collapse", "student_data", "student_trainer", "teachers"},
    {"paraphrases"},
    {"train", "evaluate", "encode", "similarity", "study", "report", "pretrain", "distill", "generate"},
]
MODULES = sorted({path.stem for path in PACKAGE.glob("*.py")} - {"__init__"})


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


def test_every_module_has_a_room():
    """Fails if a new file escapes the rule below."""
    assert set(MODULES) <= set().union(*ROOMS), set(MODULES) - set().union(*ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_arrows_point_one_way(module):
    """Fails if a leaf imports a sibling or a job another job: then nothing can be read or tested alone."""
    level = next(index for index, room in enumerate(ROOMS) if module in room)
    below = set().union(*ROOMS[:level])
    assert imported(PACKAGE / f"{module}.py", "cosent") <= below


@pytest.mark.parametrize("path", sorted((ROOT / "data_scripts").glob("*.py")), ids=lambda path: path.stem)
def test_data_scripts_share_the_contract_alone(path):
    """Fails if preparing data needs torch, or training code changes what a prepared corpus is."""
    assert imported(path, "cosent") <= {"schema"}


def test_the_package_never_imports_the_data_scripts():
    """Fails if an installed package needs a folder that is not installed."""
    files = list(PACKAGE.rglob("*.py"))
    assert len(files) > 20
    assert not [path for path in files if imported(path, "data_scripts")]
