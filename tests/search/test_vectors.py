"""Files of vectors: whole or absent, never of another model or other sentences, and all of a folder one array."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.flags import parse
from cosent.jobs.encode import EncodeArguments, main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import fingerprint
from cosent.search.vectors import VectorManifest, manifest_path, open_vectors

LINES = ["怎么还款", "如何还款", "今天天气很好"]


def encode(model, *words):
    main(*parse(["--model", str(model), "--device", "cpu", *map(str, words)], EncodeArguments))


@pytest.fixture
def encoded(tiny_model, tmp_path):
    """The path of vectors in a folder next to the one of their sentences; `cosent encode` wrote them."""
    (tmp_path / "vectors").mkdir()
    (tmp_path / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    vectors = tmp_path / "vectors/faq.npy"
    encode(tiny_model, "--text", tmp_path / "faq.txt", "--output", vectors, "--int8", "--prompt", "问：")
    return vectors


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_vectors_of_another_model_are_refused(encoded, tmp_path):
    """Fails if a query of another model is compared with vectors, or a folder or a bare array is taken for them."""
    stored = open_vectors(encoded)
    assert len(open_vectors(encoded, stored.manifest.model_sha256).vectors) == 3
    with pytest.raises(InputError, match=f"another model, {re.escape(stored.manifest.model)}"):
        open_vectors(encoded, "0" * 40)
    np.save(tmp_path / "other.npy", stored.vectors)
    with pytest.raises(InputError, match=r"other\.npy\.json"):
        open_vectors(tmp_path / "other.npy")
    for nothing in (tmp_path / "nowhere", encoded.parent):
        with pytest.raises(InputError, match=f"no vectors at .*--output {re.escape(str(nothing))}"):
            open_vectors(nothing)


def test_vectors_and_sentences_come_back(encoded, tiny_model, tmp_path, monkeypatch):
    """Fails if rows are shown as other sentences, the model is not recognised, or a folder cannot be moved."""
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    monkeypatch.chdir("/")
    stored = open_vectors(tmp_path / "moved/vectors/faq.npy")
    assert stored.sentences() == LINES and stored.vectors.shape == (3, 32)
    manifest = stored.manifest
    assert manifest.model_sha256 == fingerprint(SentenceEncoder.from_pretrained(str(tiny_model)))
    assert (manifest.prefix, manifest.input) == ("问：", "../faq.txt")


def test_other_vectors_are_refused(encoded):
    """Fails if truncated vectors, torn ones, those of another run, or rows of zeros that a crash leaves, are taken for
    those of the sentences."""
    whole, vectors = encoded.read_bytes(), np.load(encoded)
    for damaged in (whole[:-1], whole[:50], b"", whole[:-4] + b"\0\0\0\0"):
        encoded.write_bytes(damaged)
        with pytest.raises(InputError, match=r"faq\.npy (cannot be read|does not hold)"):
            open_vectors(encoded)
    for other in (vectors[:2], vectors.astype(np.float64), vectors[::-1]):
        np.save(encoded, other)
        with pytest.raises(InputError, match=r"faq\.npy does not hold .*\(3, 32\)"):
            open_vectors(encoded)
    encoded.write_bytes(whole)
    assert len(open_vectors(encoded).vectors) == 3


def test_changed_or_missing_files_are_refused(encoded, tmp_path):
    """Fails if rows are shown as lines of an edited file, or vectors of unknown sentences are searched."""
    vectors = open_vectors(encoded)
    (tmp_path / "faq.txt").write_text("新的问题\n" + "\n".join(LINES), encoding="utf-8")
    for change in (lambda: None, (tmp_path / "faq.txt").unlink):
        change()
        with pytest.raises(InputError, match=r"faq\.txt"):
            vectors.sentences()
    for content in ("[1]", "{", '{"rows": 3}'):
        manifest_path(encoded).write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"faq\.npy\.json cannot be read"):
            VectorManifest.read(encoded)
    manifest_path(encoded).unlink()
    with pytest.raises(InputError, match=r"faq\.npy\.json"):
        open_vectors(encoded)


@pytest.mark.matrix
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_job_leaves_nothing_torn(tiny_model, tmp_path):
    """Fails if a SIGKILL half-way leaves a file that looks whole, or one that stays for ever."""
    lines = "".join(f"第{row}个问题怎么还款\n" for row in range(12_000))
    (tmp_path / "faq.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "vectors").mkdir()
    output = tmp_path / "vectors/faq.npy"
    words = ["--text", tmp_path / "faq.txt", "--output", output]
    command = [
        sys.executable,
        "-m",
        "cosent",
        "encode",
        "--model",
        str(tiny_model),
        "--device",
        "cpu",
        *map(str, words),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not list(output.parent.glob("*.partial")) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert list(output.parent.glob("*.partial")), "it was killed too late, and nothing was seen"
    assert not output.exists()
    encode(tiny_model, *words)
    assert sorted(bytes_of(output.parent)) == ["faq.npy", "faq.npy.json"]
    assert len(open_vectors(output).vectors) == 12_000
