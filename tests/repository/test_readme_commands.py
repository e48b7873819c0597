"""README's commands run as pasted, on the files of the clone, and print what README shows."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import cosent.cli
from cosent.flags import parse
from cosent.jobs.serve import ServeArguments, application, load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def same_words(printed: str, shown: str) -> bool:
    """Whether two outputs have equal words, and numbers that differ by rounding."""
    words, others = printed.split(), shown.split()
    return len(words) == len(others) and all(
        float(word) == pytest.approx(float(other), abs=2e-3) if "." in word and "." in other else word == other
        for word, other in zip(words, others, strict=True)
    )


def shown_after(command: str) -> str:
    """The output that README shows below a command."""
    return re.search(r"```text\n(.*?)```", README[README.index(command) :], re.DOTALL)[1]


def test_the_first_answer_is_what_the_quickstart_prints(job):
    """If it fails, the first thing that a reader sees is not what he gets."""
    assert "similarity --pairs examples/two.tsv" in (ROOT / "Makefile").read_text(encoding="utf-8")
    printed, _ = job("cosent.jobs.similarity", "--pairs", ROOT / "examples/two.tsv")
    assert same_words(printed, shown_after("make quickstart"))


def test_make_targets_of_the_readme():
    """If it fails, README does not say how to set the project up, or CI runs something else."""
    assert "make quickstart" in README and "make test" in README
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
def test_pairs_become_a_search(tmp_path, monkeypatch, capsys):
    """If it fails, a command of README ends in an error, or answers otherwise."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr(cosent.cli, "configure_logging", lambda: None)  # for this process, whose tests read its log
    commands = re.findall(r"^cosent (?:prepare|train|search) .*$", README, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["prepare", "train", "search"]
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command, comments=True))
        capsys.readouterr()
        cosent.cli.main()
    assert (tmp_path / "runs/faq/model.safetensors").is_file()
    assert same_words(capsys.readouterr().out, shown_after(commands[-1]))


def test_a_request_to_the_service(monkeypatch):
    """If it fails, a reader who copies the request gets another answer than the page shows, or an error."""
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.chdir(ROOT)
    for page in (ROOT / "README.md", ROOT / "docs/serving.md"):
        text = page.read_text(encoding="utf-8")
        command = re.search(r"^cosent serve (--text .*?)(?:\s+#.*)?$", text, re.MULTILINE)
        request = re.search(r"^curl -s localhost:8000(\S+) .* -d '(.*?)'$", text[command.end() :], re.MULTILINE)
        answer = json.loads(re.search(r"```json\n(.*?)```", text[command.end() :], re.DOTALL)[1])
        (args,) = parse(shlex.split(command[1]), ServeArguments)
        with testclient.TestClient(application(load(args))) as client:
            response = client.post(request[1], json=json.loads(request[2])).json()
        assert rounded(response) == rounded(answer), page.name


def rounded(answer):
    """An answer with its numbers to two digits after the point."""
    return json.loads(json.dumps(answer), parse_float=lambda number: round(float(number), 2))
