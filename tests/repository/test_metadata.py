"""What the repository says of itself: versions, ranges, pinned tools and files that its guides name."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import cosent

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATH_IN_BACKTICKS = re.compile(r"`((?:src|tests|recipes|results|data_scripts|benchmarks|docs)/[\w./-]*)`")


def pins(name: str) -> dict[str, str]:
    """Package -> version of a requirements file, without the files that it includes."""
    lines = (ROOT / name).read_text(encoding="utf-8").split()
    return dict(line.split(";")[0].split("==") for line in lines if "==" in line)


def test_every_file_names_the_same_version():
    """Fails if a user cites another version than the one that ran."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == cosent.__version__ == citation["version"]
    assert PROJECT["license"] == citation["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_what_is_pinned_is_in_range():
    """Fails if `pip install cosent` and `make install` could never agree, or a dependency has no tried version."""
    exact = pins("requirements.txt")
    extras, installed = PROJECT["optional-dependencies"], ("demo", "report", "serve", "xlsx")
    wanted = [Requirement(line) for line in PROJECT["dependencies"] + sum((extras[name] for name in installed), [])]
    assert {requirement.name for requirement in wanted} == set(exact)
    assert len(wanted) > 10
    tools = [Requirement(line) for line in extras["dev"]]
    (own,) = (tool for tool in tools if tool.name == "cosent")
    tools += [Requirement(line) for extra in own.extras - set(installed) for line in extras[extra]]
    exact_tools = pins("requirements-dev.txt")
    assert {tool.name for tool in tools} == {*exact_tools, "cosent"}
    for requirement in [*wanted, *tools]:
        version = (exact | exact_tools | {"cosent": cosent.__version__})[requirement.name]
        assert requirement.specifier.contains(version), requirement


def test_hooks_run_the_tools_that_make_runs():
    """Fails if a commit passes the hooks and then fails `make lint`, because another version judged it."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    tools = dict(pin.split("==") for hook in hooks for pin in hook["additional_dependencies"])
    assert set(tools) == {"ruff", "typos"}
    assert tools.items() <= pins("requirements-dev.txt").items()


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "SECURITY.md"])
def test_guides_name_files_that_exist(guide):
    """Fails if a contributor is sent to a file that has moved; names in capitals stand for the contributor's own."""
    text = (ROOT / guide).read_text(encoding="utf-8")
    paths = [path for path in PATH_IN_BACKTICKS.findall(text) if "NAME" not in path]
    assert paths or guide != "CONTRIBUTING.md"
    assert not [path for path in paths if not (ROOT / path).exists()]
