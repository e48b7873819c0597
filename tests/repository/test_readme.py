"""Every command of the README and of the recipes' headers exists, with every flag it shows."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    """`python -m ...` and `accelerate launch ... -m ...` lines of README, recipes and docstrings, joined over `\\`."""
    files = [ROOT / "README.md", *(ROOT / "recipes").rglob("*.yaml")]
    found = []
    for file in files:
        text = re.sub(r"\\\n\s*", " ", file.read_text(encoding="utf-8"))
        found += re.findall(
            r"(?:python|accelerate launch)[^\n`#]* -m [^\n`#]*", text.replace("python -m", "python  -m")
        )
    return sorted(set(found))


@cache
def help_of(module: str) -> str:
    result = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_commands_are_found():
    """Fails if the pattern above matches nothing any more."""
    assert len(commands()) >= 12


@pytest.mark.parametrize("command", commands())
def test_a_command_has_the_flags_it_shows(command):
    """Fails if a user who copies a line from the README gets an error."""
    launcher, module, flags = re.fullmatch(r"(.*?) -m (\S+)(.*)", command).groups()
    for path in re.findall(r"(?<=--config_file )\S+|(?<=--config )\S+", command):
        assert path == "RECIPE" or (ROOT / path).is_file(), path
    if module != "cosent.report":
        for flag in re.findall(r"--\w+", flags):
            assert re.search(rf"{flag}\b", help_of(module)), f"{module} has no {flag}"


def test_make_targets_of_the_readme_exist():
    """Fails if the first thing a user types is not there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
