"""What the source touches: private names of other libraries, modules of POSIX, hosts, code and pickles of a model."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTED = {"_exit"}  # of os, whose documentation says when to call it
# getattr(model, "_name"), vars(model).pop("_name")
BY_STRING = {"getattr", "setattr", "hasattr", "delattr", "pop", "get"}


def names_of(node: ast.AST) -> set[str]:
    """What a node reads, sets or overrides by name."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.keyword):
        return {node.arg or ""}
    if isinstance(node, ast.ClassDef):
        return {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_STRING:
        return {str(argument.value) for argument in node.args if isinstance(argument, ast.Constant)}
    return set()


def private_names(source: str) -> set[str]:
    """Private names that a file uses and does not define itself, outside of classes."""
    tree = ast.parse(source)
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {name for node in ast.walk(tree) for name in names_of(node)}
    return {name for name in used - own - DOCUMENTED if re.fullmatch(r"_[a-z]\w*", name)}


def rows() -> dict[str, str]:
    """Rows of the tables in CONTRIBUTING.md by the name in their first column."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", text, re.MULTILINE)}


def test_every_private_name_is_listed():
    """Fails if an upgrade breaks something private that no maintainer knew of, or the list names what is gone."""
    files = sorted((ROOT / "src").rglob("*.py"))
    used = {name: file.name for file in files for name in private_names(file.read_text(encoding="utf-8"))}
    assert {"_save_checkpoint", "_set_sync_gradients", "_load_scaler", "_fingerprint"} <= set(used)
    assert {name: file for name, file in used.items() if name not in rows()} == {}, "list them in CONTRIBUTING.md"
    assert sorted(set(rows()) - set(used)) == [], "no longer used: remove them from CONTRIBUTING.md"


def test_no_module_needs_what_windows_lacks():
    """Fails if importing a module needs one of POSIX alone, so that no job starts on Windows."""
    lines = [line for file in (ROOT / "src").rglob("*.py") for line in file.read_text(encoding="utf-8").splitlines()]
    assert not [line for line in lines if re.match(r"(import|from) (fcntl|grp|pwd|resource|termios)\b", line)]
    assert any(re.match(r" +import resource\b", line) for line in lines), "inside a function it may"


# Runs jobs one after the other, and ends the process at the first look-up or connection beyond this machine, whether or
# not a library would have caught an error.
WITHOUT_NETWORK = """
import json, os, runpy, sys
LOCAL = (None, "", "localhost", "127.0.0.1", "::1")
HOST = {"getaddrinfo": 0, "gethostbyname": 0, "connect": 1, "sendto": 1, "sendmsg": 1}
def refuse(event, given):
    place = HOST.get(event.removeprefix("socket."))
    if place is not None:
        address = given[place]
        host = address if place == 0 else address[0] if isinstance(address, tuple) else None  # of a Unix socket
        if host not in LOCAL:
            print("asked", host, file=sys.stderr, flush=True)
            os._exit(97)
sys.addaudithook(refuse)
for command in json.loads(sys.argv[1]):
    sys.argv = command
    try:
        runpy.run_module(command[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
"""
ONCE = ["timeit", "-n", "1", "-r", "1"]  # runs a statement
IMPORTS = (
    "import importlib, pkgutil, cosent",
    "names = [module.name for module in pkgutil.walk_packages(cosent.__path__[:1], 'cosent.')]",
    "assert len(names) > 60",
    "[importlib.import_module(name) for name in names if not name.endswith('__main__')]",
)


FORBIDDEN = {"trust_remote_code", "pickle"}


def used(source: str) -> set[str]:
    """Arguments other than False, strings and imported modules of a file; what a docstring mentions is not used.

    Nor is pickle where only its exception is imported.
    """
    nodes = list(ast.walk(ast.parse(source)))
    strings = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    modules |= {node.module or "" for node in imports if [name.name for name in node.names] != ["UnpicklingError"]}
    refused = [node for node in nodes if isinstance(node, ast.keyword) and getattr(node.value, "value", None) is False]
    arguments = {node.arg or "" for node in nodes if isinstance(node, ast.keyword) and node not in refused}
    return strings | modules | arguments


def run_without_network(*commands: list[str], **variables: str) -> subprocess.CompletedProcess:
    online = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "CI")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK, json.dumps(commands)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=online | variables,
    )


@pytest.mark.slow
def test_no_host_is_asked(make_corpus, pairs, tmp_path):
    """Fails if a user behind a firewall waits for time-outs, or something leaves the machine: on importing any module,
    scoring, training, saving, checking the saved folder, or evaluating it."""
    corpus = make_corpus({split: pairs for split in ("train", "validation", "test")})
    words = ["--model_name_or_path", "mini", "--corpus", str(corpus), "--output_dir", str(tmp_path / "run")]
    done = run_without_network(
        [*ONCE, *IMPORTS],
        ["cosent", "similarity", "--model", "mini", "我喜欢北京", "我不喜欢北京"],
        ["cosent", "train", *words, "--use_cpu", "--max_steps", "1"],
        ["cosent", "evaluate", "--model", str(tmp_path / "run"), "--corpus", str(corpus), "--device", "cpu"],
    )
    assert done.returncode == 0 and "我喜欢北京" in done.stdout and '"spearman"' in done.stdout, done.stderr
    assert (tmp_path / "run/run.json").is_file()


@pytest.mark.matrix
def test_exports_report_nothing(tiny_bi, make_corpus, pairs, tmp_path):
    """Fails if onnxruntime tells its maker about the machine, or collects for that in the user's folders."""
    pytest.importorskip("onnxruntime")
    corpus = make_corpus({split: pairs for split in ("train", "validation", "test")})
    words = ["cosent", "export", "--model", str(tiny_bi), "--corpus", str(corpus), "--int8"]
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = run_without_network([*words, "--output", str(tmp_path / "out")], **home)
    assert done.returncode in (0, 2) and "largest_change" in done.stdout + done.stderr, done.stderr  # ran to the proof
    assert "asked" not in done.stderr
    assert not [path for name in ("Microsoft", "intel") for path in tmp_path.glob(f"{name}/**/*")]


@pytest.mark.parametrize(
    ("command", "host"),
    [
        (["cosent", "similarity", "--model", "somebody/no-such-model", "我", "你"], "huggingface.co"),
        ([*ONCE, "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 9))"], "192.0.2.1"),
    ],
)
def test_the_block_blocks(command, host):
    """Fails if the test above could not see a look-up, a connection or a datagram."""
    done = run_without_network(command)
    assert done.returncode == 97 and done.stderr.endswith(f"asked {host}\n")


def test_no_code_comes_with_a_model():
    """Fails if a model or a checkpoint from elsewhere could run code here."""
    files = [path for name in ("src", "data_scripts") for path in (ROOT / name).rglob("*.py")]
    assert len(files) > 60
    assert used('load(trust_remote_code=True); o["trust_remote_code"]; import pickle') >= FORBIDDEN
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert not used(text) & FORBIDDEN, path
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, (path, call)
