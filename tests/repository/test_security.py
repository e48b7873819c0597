"""What SECURITY.md promises: no connection that was not asked for, no code from models, no pickles."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Ends the process at the first look-up of a host, whether or not a library would have caught an error.
WITHOUT_NETWORK = """
import os, runpy, socket, sys
def refused(host, *rest, **named):
    print("looked up", host, file=sys.stderr, flush=True)
    os._exit(97)
socket.getaddrinfo = socket.create_connection = refused
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


FORBIDDEN = {"trust_remote_code", "pickle"}


def used(source: str) -> set[str]:
    """Arguments other than False, strings and imported modules of a file; what a docstring mentions is not used."""
    nodes = list(ast.walk(ast.parse(source)))
    strings = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    refused = [node for node in nodes if isinstance(node, ast.keyword) and getattr(node.value, "value", None) is False]
    arguments = {node.arg or "" for node in nodes if isinstance(node, ast.keyword) and node not in refused}
    return strings | modules | arguments


def run_without_network(*command: str) -> subprocess.CompletedProcess:
    online = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK, *command], capture_output=True, text=True, encoding="utf-8", env=online
    )


@pytest.mark.slow
def test_serving_a_shipped_encoder_asks_no_host():
    """Fails if a user behind a firewall waits for time-outs, or what they use leaves the machine."""
    done = run_without_network("cosent.similarity", "--model", "mini", "我喜欢北京", "我不喜欢北京")
    assert done.returncode == 0 and "我喜欢北京" in done.stdout, done.stderr


@pytest.mark.slow
def test_training_asks_no_host(make_corpus, pairs, tmp_path):
    """Fails if training, saving or the check of the saved folder reports to anybody."""
    corpus = make_corpus({split: pairs for split in ("train", "validation", "test")})
    words = ["--model_name_or_path", "mini", "--corpus", str(corpus), "--output_dir", str(tmp_path / "run")]
    done = run_without_network("cosent.train", *words, "--use_cpu", "--max_steps", "1")
    assert done.returncode == 0 and (tmp_path / "run" / "run.json").is_file(), done.stderr


def test_the_block_blocks():
    """Fails if the two tests above could not see a connection."""
    done = run_without_network("cosent.similarity", "--model", "somebody/no-such-model", "我", "你")
    assert done.returncode == 97 and "looked up" in done.stderr


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
