"""Every command of the documentation and of the recipes' headers parses, and every link leads somewhere."""

import argparse
import importlib.util
import re
import runpy
import shlex
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

import cosent.cli
from cosent.encode import EncodeArguments
from cosent.encode import main as encode
from cosent.evaluation.calibration import Platt
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student
from cosent.run import Environment, RunRecord

ROOT = Path(__file__).parents[2]
CARDS = sorted((ROOT / "src/cosent/encoders").glob("*/README.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *CARDS]
OTHER_TOOLS = {"python3", "pip", "lint-imports", "source", "export", "git", "cd"}  # not ours to check
OTHER_MODULES = {"pip", "venv", "ruff", "mypy", "pytest"}
LEARNING_JOBS = {"cosent.train", "cosent.distill", "cosent.pretrain"}


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def shell_lines() -> list[tuple[str, str]]:
    """`(file, line)` of every shell line that a reader could copy, continuation lines joined, comments removed."""
    lines = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        copied = "\n".join([*code_blocks(page, "bash"), *re.findall(r"`((?:python -m|cosent|make) [^`<\n]+)`", text)])
        lines += [(page, line) for line in copied.replace("\\\n", " ").splitlines()]
    for recipe in sorted((ROOT / "recipes").rglob("*.yaml")):
        launches = re.findall(r"^# Launch: (.*)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
        lines += [(recipe, line) for line in launches if "RECIPE" not in line]
    named = [(str(file.relative_to(ROOT)), re.sub(r"\s+#.*$", "", line).strip()) for file, line in lines]
    return sorted({(file, line) for file, line in named if line and not line.startswith("#")})


class Parsed(BaseException):
    """Raised once a job has understood its command line, instead of running the job."""


def raising(parse):
    def parse_and_stop(*args, **kwargs):
        parse(*args, **kwargs)
        raise Parsed

    return parse_and_stop


@pytest.fixture
def understands(monkeypatch):
    """A function that gives words to the parser of a module, as `python -m` would."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cosent.cli, "parse", raising(cosent.cli.parse))
    monkeypatch.setattr(cosent.cli, "configure_logging", lambda: None)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", raising(argparse.ArgumentParser.parse_args))

    def check(module: str, words: list[str]) -> None:
        if not words:  # prose that names a job, or a job that can do without arguments
            assert importlib.util.find_spec(module), module
            return
        on_a_cpu = ["--use_cpu", "true"] if module in LEARNING_JOBS else []  # else bf16 asks for a GPU here
        monkeypatch.setattr(sys, "argv", [module, *words, *on_a_cpu])
        with pytest.raises(Parsed), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            # runpy warns of a module that was imported before and is run once more
            runpy.run_module(module, run_name="__main__", alter_sys=False)

    return check


def test_commands_are_found():
    """Fails if the patterns above match nothing any more."""
    files = {file for file, _ in shell_lines()}
    assert len(shell_lines()) >= 60
    assert {"README.md", "README.zh-CN.md", "docs/student.md", "recipes/student/stage1.yaml"} <= files


@pytest.mark.parametrize(("file", "line"), shell_lines())
def test_a_command_parses(file, line, understands):
    """Fails if a user who copies a line gets an error about it."""
    tool, *words = shlex.split(line)
    if tool == "make":
        assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif tool == "accelerate":
        assert words.pop(0) == "launch"
        launch = launch_command_parser()
        # A parser of its own: the patched method would stop here.
        launched, unknown = launch.parse_known_args(words)
        assert not unknown and launched.module and Path(launched.config_file).is_file()
        understands(launched.training_script, launched.training_script_args)
    elif Path(tool).name == "python":
        assert words[0] == "-m"
        if words[1] not in OTHER_MODULES:
            understands(words[1], words[2:])
    elif tool == "cosent":
        assert words[0] in cosent.cli.JOBS
        understands(f"cosent.{words[0]}", words[1:])
    else:
        assert Path(tool).name in OTHER_TOOLS, f"{file}: {line}"


def test_a_command_that_does_not_parse_is_found(understands):
    """Fails if the tests above would pass on a misspelt flag, recipe or choice."""
    for line in ("--encoder runs/stsb a b", "--model"):
        with pytest.raises(SystemExit):
            understands("cosent.similarity", line.split())
    train = "--config recipes/bi_encoder/cosent_mini.yaml --corpus stsb --output_dir runs/x"
    for wrong in ("--rate 1.0", "--loss cosine", "--num_train_epochs many"):
        with pytest.raises(SystemExit):
            understands("cosent.train", f"{train} {wrong}".split())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        found += [(str(page.relative_to(ROOT)), target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return sorted({(page, target) for page, target in found if not target.startswith(("http", "../../actions/"))})


def test_links_are_found():
    """Fails if the pattern above matches nothing any more."""
    assert len(links()) >= 60 and any("#" in target for _, target in links())


@pytest.mark.parametrize(("page", "target"), links())
def test_a_link_leads_somewhere(page, target):
    """Fails if a reader follows a link to a page or a heading that is not there."""
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    assert file.exists(), f"{page} links to {target}"
    if anchor:
        assert anchor in anchors(file), f"{page} links to {target}; {file.name} has {sorted(anchors(file))}"


@pytest.fixture
def trained_models(tmp_path, monkeypatch, tiny_model, tiny_student):
    """The folders that the examples load, with tiny models in them."""
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "faq", "stsb", "lcqmc"):
        SentenceEncoder.from_pretrained(str(tiny_model)).save_pretrained(tmp_path / "runs" / name)
    found = {"thresholds": {"lcqmc": 0.9}, "calibrations": {"lcqmc": Platt(pairs=98, slope=9.0, intercept=-8.0)}}
    measured = {"environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0, "history": []}
    RunRecord(recipe={}, **measured, **found).save(tmp_path / "runs/lcqmc")
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "runs/cross")
    (tmp_path / "questions.txt").write_text("怎么还款\n如何借款\n天气\n", encoding="utf-8")
    encode(EncodeArguments("runs/faq", ["questions.txt"], "vectors.npy", normalize=True, device="cpu"))
    Student.from_pretrained(str(tiny_student)).save_pretrained(tmp_path / "runs/student")


EXAMPLES = [(str(page.relative_to(ROOT)), block) for page in PAGES for block in code_blocks(page, "python")]


def test_examples_are_found():
    """Fails if the pattern above matches nothing any more."""
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=[page for page, _ in EXAMPLES])
def test_a_python_example_runs(page, block, trained_models):
    """Fails if a user who copies an example gets an error, or a score where the page shows vectors."""
    names = {}
    exec(compile(block, page, "exec"), names)
    assert {"cosent", "Index", "SentenceEncoder", "CrossEncoder", "Student"} & set(names)
    if "vectors" in names:
        assert names["vectors"].shape[0] == 2 and -1 <= names["cosine"] <= 1


def test_the_layers_on_the_page_are_those_that_are_checked():
    """Fails if a folder is added or moved, and the page about the architecture still shows the old order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    (graph,) = code_blocks(ROOT / "docs/architecture.md", "mermaid")
    (first,) = re.findall(r"^graph TD\n  jobs\[\"(.*)\"\]", graph)
    shown = [first, *("".join(found) for found in re.findall(r"--> (?:\w+\[\"(.*)\"\]|(\w+))$", graph, re.MULTILINE))]
    assert [set(re.split(r" · ", text)) for text in shown] == [set(re.split(r" [|:] ", layer)) for layer in layers]
