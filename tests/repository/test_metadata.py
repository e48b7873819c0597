"""What the repository says of itself: versions, ranges, pinned tools, files that its guides name, and its notebook."""

import json
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
    files = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in ROOT.glob(".github/workflows/*.yml")}
    assert set(files) == {"lint", "nightly", "release", "test"}
    for name, workflow in files.items():
        jobs = workflow["jobs"]
        assert workflow["permissions"] == {"contents": "read"}, name
        assert all(job["timeout-minutes"] <= 120 and {*job} >= {"steps", "runs-on"} for job in jobs.values()), name
        assert all(("run" in step) != ("uses" in step) for job in jobs.values() for step in job["steps"]), name
    build, smoke, publish = (files["release"]["jobs"][name] for name in ("build", "smoke", "publish"))
    assert smoke["needs"] == "build" and publish["needs"] == "smoke" and "permissions" not in smoke
    assert smoke["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert publish["permissions"] == {"id-token": "write"} and "with" not in publish["steps"][-1]
    runs = [" ".join(step.get("run", "") for step in job["steps"]) for job in (build, smoke)]
    assert re.search("-m build.*twine check", runs[0]) and re.search("prepare demo.*train.*search", runs[1])
    assert "checkout" not in str(smoke), "the wheel would run next to its sources"


NOTEBOOK = ROOT / "docs/quickstart.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(cell) -> str:
    """All text that a cell shows."""
    shown = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(shown)


def test_what_is_stored(notebook):
    """Fails if outputs of some machine are committed, a cell is in the wrong language, a link leads nowhere, or the
    Chinese notebook, which no test runs, has other code."""
    chinese = nbformat.read(NOTEBOOK.with_suffix(".zh-CN.ipynb"), as_version=4)
    for one, in_chinese in ((notebook, False), (chinese, True)):
        nbformat.validate(one)
        assert set(one.metadata) == {"kernelspec", "language_info"} and len(one.cells) > 10
        for cell in one.cells:
            assert not cell.get("outputs") and cell.get("execution_count") is None
            text = re.sub(r"\[[^]]*\]\([^)]*\)", "", cell.source)  # the text of links aside
            comments = re.findall(r"# .*", text) if cell.cell_type == "code" else [text]
            assert comments and all(bool(re.search("[一-鿿]", text)) == in_chinese for text in comments), cell.source
        links = re.findall(r"\]\((?!http)([^)#]+)", json.dumps([cell.source for cell in one.cells]))
        assert len(links) > 4 and not [link for link in links if not (NOTEBOOK.parent / link).is_file()]
    codes = [
        [re.sub(" *# .*", "", cell.source) for cell in one.cells if cell.cell_type == "code"]
        for one in (notebook, chinese)
    ]
    assert codes[0] == codes[1]
    assert [(cell.id, cell.cell_type) for cell in notebook.cells] == [
        (cell.id, cell.cell_type) for cell in chinese.cells
    ]


@pytest.mark.matrix
def test_it_runs(notebook, tmp_path, monkeypatch):
    """Fails if the first thing that somebody in Colab runs ends in an error: all cells, on fewer pairs."""
    monkeypatch.setenv("COSENT_QUICKSTART_FOLDER", str(tmp_path))
    monkeypatch.setenv("COSENT_QUICKSTART_PAIRS", "128")
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    uses = ("cosent train", "dots(", "index.search", "cosent evaluate", "pairs_8541")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    by_use = {name: cell for cell in cells for name in uses if name in cell.source}
    assert re.search(r"^demo test +0\.\d{4} +0\.\d{4} +0\.1972", printed(by_use["cosent train"]), re.MULTILINE)
    assert (tmp_path / "model/run.json").is_file()
    assert re.search(r"^Spearman: -?0\.\d{4}$", printed(by_use["pairs_8541"]), re.MULTILINE)
    assert "今天天气不错" in printed(by_use["pairs_8541"])
    assert "<svg" in by_use["dots("].outputs[0]["data"]["text/html"]
    assert "(7, 256)" in printed(by_use["index.search"])
    assert '"spearman"' in printed(by_use["cosent evaluate"])
