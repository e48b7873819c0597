"""Every command of the documentation and of the recipes' headers parses, its Python runs, and links lead somewhere."""

import argparse
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from functools import cache
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

import cosent.cli
from tests.conftest import prepare as prepare_corpus

ROOT = Path(__file__).parents[2]
PAGES = [page for place in ("", "docs/", "lab/", "src/cosent/encoders/*/") for page in ROOT.glob(f"{place}*.md")]
OTHER_TOOLS = {"python3", "pip", "lint-imports", "source", "curl", "export", "git", "cd", "bash", "hf", "uv"}
OTHER_MODULES = {"pip", "venv", "ruff", "mypy", "pytest"}
LEARNING_JOBS = {"train", "distill", "lab.pretrain"}


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def shell_lines() -> dict[str, str]:
    """Every shell line that a reader could copy -> the file, continuation lines joined and comments removed."""
    lines = []
    for page in (page for page in PAGES if page.name != "LOG.md"):  # which names commands of other commits
        text = page.read_text(encoding="utf-8")
        copied = "\n".join([*code_blocks(page, "bash"), *re.findall(r"`((?:python -m|cosent|make) [^`<\n]+)`", text)])
        lines += [(line, page) for line in copied.replace("\\\n", " ").splitlines()]
    for recipe in [*(ROOT / "recipes").rglob("*.yaml"), *(ROOT / "lab").glob("*/*.yaml")]:
        launches = re.findall(r"^# Launch: (.*)$", recipe.read_text(encoding="utf-8"), re.MULTILINE)
        lines += [(line, recipe) for line in launches if "RECIPE" not in line]
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        run = re.findall(r"^ *- run: (cosent [^|\n]+)", workflow.read_text(encoding="utf-8"), re.MULTILINE)
        lines += [(line, workflow) for line in run]
    named = [(re.sub(r"\s+#.*$", "", line).strip(), str(file.relative_to(ROOT))) for line, file in lines]
    return {line: file for line, file in named if line and not line.startswith("#")}


class Parsed(BaseException):
    """Raised once a job has understood its command line, instead of running the job."""


def raising(parse):
    def parse_and_stop(*args, **kwargs):
        parse(*args, **kwargs)
        raise Parsed

    return parse_and_stop


@cache
def launched(words: tuple[str, ...]) -> list[str]:
    """The words that `accelerate launch` gives to the module that it runs, the module first."""
    parsed, unknown = launch_command_parser().parse_known_args(words)
    assert not unknown and parsed.module and Path(parsed.config_file).is_file()
    return [parsed.training_script, *parsed.training_script_args]


@pytest.fixture
def understands(monkeypatch, capsys):
    """Returns a function that says why a shell line is not understood; None if it is."""
    monkeypatch.chdir(ROOT)
    stock = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(cosent.cli, "fill", raising(cosent.cli.fill))
    monkeypatch.setattr(cosent.cli, "launch", lambda *_: None)
    monkeypatch.setattr(cosent.cli, "configure_logging", lambda: None)

    def parse(module: str, words: list[str]) -> None:
        job, *flags = words if module == "cosent" else [module, *words]
        assert module != "cosent" or job in cosent.cli.JOBS, "no such job"
        if not flags:  # prose that names a job, or a job that can do without arguments
            assert importlib.util.find_spec(module), module
            return
        on_a_cpu = ["--use_cpu", "true"] if job in LEARNING_JOBS else []  # else bf16 asks for a GPU here
        monkeypatch.setattr(sys, "argv", [module, *words, *on_a_cpu])
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", raising(stock))
        try:
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of modules that run once more
                runpy.run_module(module, run_name="__main__", alter_sys=False)
        except Parsed:
            return
        finally:
            monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stock)
        raise AssertionError(f"{module} ran without parsing")

    def check(line: str) -> None:
        tool, *words = shlex.split(line)
        if words == ["--version"]:
            assert tool == "cosent"
        elif {"--help", "--help_all"} & {*words}:
            assert tool == "cosent" and words[0] in ("JOB", *cosent.cli.JOBS), "no such job"
        elif tool == "make":
            assert f"\n{words[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), "no such target"
        elif tool == "accelerate":
            assert words[0] == "launch"
            module, *words = launched(tuple(words[1:]))
            parse(module, words)
        elif Path(tool).name == "python":
            if words[0].endswith("/run.py"):  # of an export, see tests/jobs/test_export.py
                return
            if (ROOT / words[0]).is_file():  # of examples/, see test_examples.py
                return
            assert words[0] == "-m"
            if words[1] not in OTHER_MODULES:
                parse(words[1], words[2:])
        elif tool == "cosent":
            parse("cosent", words)
        else:
            assert Path(tool).name in OTHER_TOOLS, "an unknown tool"

    def problem(line: str) -> str | None:
        try:
            check(line)
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error} {capsys.readouterr().err[-300:]}"
        return None

    return problem


def test_every_command_parses(understands):
    """Fails if a user who copies a line gets an error about it."""
    train = "cosent train --config recipes/bi_encoder/cosent_mini.yaml --corpus stsb --output_dir runs/x"
    wrong = [f"{train} {flags}" for flags in ("--rate 1.0", "--loss cosine", "--num_train_epochs many")]
    wrong += ["cosent similarity --encoder runs/stsb a b", "python -m cosent similarity --model", "make coffee", "rm a"]
    assert understands(train) is None and all(understands(line) for line in wrong)
    lines = shell_lines()
    assert len(lines) >= 60
    assert {"docs/student.md", "recipes/student/stage1.yaml", ".github/workflows/release.yml"} <= set(lines.values())
    problems = [f"{file}: {line}\n  {problem}" for line, file in lines.items() if (problem := understands(line))]
    assert not problems, "\n".join(problems)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
def test_teach_sh(understands, tmp_path):
    """Fails if a command of the script does not parse, a round is taught by the models of the start, or a line runs
    again that is done."""
    shim = tmp_path / "cosent"
    shim.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "cosent $*"\n', encoding="utf-8")
    shim.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}

    def lines() -> list[str]:
        words = ["bash", ROOT / "recipes/teach.sh", "stsb", tmp_path / "out", "2", "--bf16", "false"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.replace(f"{tmp_path}/out/", "").splitlines()

    *commands, models = lines()
    assert len(commands) == 1 + 2 * 6 and models == "models: cross_encoder_2 bi_encoder_2"
    assert [problem for line in commands if (problem := understands(line))] == []
    mined = [re.search(r"--model (\S+) --teacher (\S+) ", line) for line in commands if line.startswith("cosent mine")]
    assert [match and match.groups() for match in mined] == [
        ("bi_encoder_0", "bi_encoder_0"),
        ("bi_encoder_0", "cross_encoder_1"),
        ("bi_encoder_1", "bi_encoder_1"),
        ("bi_encoder_1", "cross_encoder_2"),
    ]
    (tmp_path / "out/bi_encoder_0").mkdir(parents=True)
    (tmp_path / "out/bi_encoder_0/run.json").touch()
    (tmp_path / "out/cross_encoder_1_pairs").mkdir()
    assert lines() == [*commands[2:], models]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    """Fails if a reader follows a link to a page or a heading that is not there."""
    links = {(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page))}
    links = {(page, target) for page, target in links if not target.startswith(("http", "../../actions/"))}
    assert len(links) >= 60 and any("#" in target for _, target in links)
    broken = []
    for page, target in sorted(links):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert not broken, "\n".join(broken)


@pytest.mark.slow
def test_the_page_for_python_runs(tmp_path, monkeypatch, tiny_model, tiny_student, pairs):
    """Fails if a user who copies the examples one after the other gets an error."""
    page = ROOT / "docs/python.md"
    code = "\n".join(code_blocks(page, "python"))
    assert code.count(".train()") == 5
    for name, folder in (("mini", tiny_model), ("mini-roformer", tiny_student)):  # "mini" is also in the second name
        code = code.replace(f'"{name}"', f'"{folder}"')
    monkeypatch.chdir(tmp_path)
    rows = [(first, second, 5 * label) for first, second, label in pairs[:24]]
    prepare_corpus(tmp_path / "data/demo", {"train": rows, "validation": rows[:12]}, "graded", 5.0)
    exec(compile(code, str(page), "exec"), {})
    assert Path("runs/both/config.json").is_file()


def test_tests_that_a_page_names_exist():
    """Fails if a page promises a test that is gone or has another name."""
    text = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))}
    missing = named - {*re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) >= 20 and not missing, missing


def test_the_layers_on_the_page_are_those_that_are_checked():
    """Fails if a folder is added or moved, and the page on the architecture still shows the old order."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    layers = [re.split(r" [|:] ", layer) for layer in contract["layers"]]
    assert layers in [
        [line.split() for line in block.splitlines()] for block in code_blocks(ROOT / "docs/architecture.md", "")
    ]
