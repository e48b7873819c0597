"""What the repository says of itself: versions, ranges, pinned tools, files that its guides name, and its notebook."""

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient
from packaging.requirements import Requirement

import cosent

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PATH_IN_BACKTICKS = re.compile(r"`((?:src|tests|recipes|lab|data_scripts|docs)/[\w./-]*)`")


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
    """Fails if `pip install cosent` and `make install` could never agree, a dependency has no tried version, or a
    commit passes hooks of other versions and then fails `make lint`."""
    exact = pins("requirements.txt")
    extras, installed = PROJECT["optional-dependencies"], ("report", "serve", "xlsx")
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
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    tools = dict(pin.split("==") for hook in hooks for pin in hook["additional_dependencies"])
    assert set(tools) == {"ruff", "typos"}
    assert tools.items() <= pins("requirements-dev.txt").items()


def test_every_pinned_file_has_a_hash():
    """Fails if the hashes are of other versions than `requirements.txt` pins, or pip would refuse a package without."""
    entries = (ROOT / "requirements.lock").read_text(encoding="utf-8").split("\n")
    starts = [line for line in entries if re.match(r"\w", line)]
    locked = dict(re.match(r"([\w.-]+)==([^ ]+)", line).groups() for line in starts)
    assert pins("requirements.txt").items() <= locked.items()
    hashed = [
        before for before, line in pairwise(entries) if line.startswith("    --hash=sha256:") and before in starts
    ]
    assert len(starts) > 80 and hashed == starts


@pytest.mark.parametrize("guide", ["CONTRIBUTING.md", "SECURITY.md"])
def test_guides_name_files_that_exist(guide):
    """Fails if a contributor is sent to a file that has moved; names in capitals stand for the contributor's own."""
    text = (ROOT / guide).read_text(encoding="utf-8")
    paths = [path for path in PATH_IN_BACKTICKS.findall(text) if "NAME" not in path]
    assert paths or guide != "CONTRIBUTING.md"
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_nothing_is_published_that_was_not_tried():
    """Fails if a release reaches PyPI before its wheel ran on Linux, macOS and Windows, or stores a token."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))["jobs"]
    build, smoke, publish = (jobs[name] for name in ("build", "smoke", "publish"))
    assert smoke["needs"] == "build" and publish["needs"] == "smoke" and "permissions" not in smoke
    assert smoke["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert publish["permissions"] == {"id-token": "write"} and "with" not in publish["steps"][-1]
    assert "checkout" not in str(smoke), "the wheel would run next to its sources"


NOTEBOOK = ROOT / "docs/quickstart.ipynb"


def test_what_is_stored():
    """Fails if outputs of some machine are committed, or the Chinese notebook, which no test runs, has other code."""
    both = [nbformat.read(NOTEBOOK.with_suffix(suffix), as_version=4) for suffix in (".ipynb", ".zh-CN.ipynb")]
    codes = []
    for notebook in both:
        nbformat.validate(notebook)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert len(cells) > 5 and not any(cell.outputs or cell.execution_count for cell in cells)
        codes.append([re.sub(" *# .*", "", cell.source) for cell in cells])
    assert codes[0] == codes[1] and len(both[0].cells) == len(both[1].cells)


@pytest.mark.matrix
def test_it_runs(tmp_path, monkeypatch):
    """Fails if the first thing that somebody in Colab runs ends in an error: all cells, on fewer pairs."""
    monkeypatch.setenv("COSENT_QUICKSTART_FOLDER", str(tmp_path))
    monkeypatch.setenv("COSENT_QUICKSTART_PAIRS", "128")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)
    assert (tmp_path / "model/run.json").is_file() and re.search(r"^Spearman: -?0\.\d{4}$", printed, re.MULTILINE)
