"""Files of vectors: whole or absent, never of another model or other sentences, and all of a folder one array."""

import json
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

from cosent.cli import parse
from cosent.data.files import table_writer
from cosent.encode import EncodeArguments, main
from cosent.errors import InputError
from cosent.inference.vectors import SAMPLE, VectorManifest, fingerprint, manifest_path, open_vectors, sample_hash
from cosent.models.bi_encoder import SentenceEncoder

ROWS = {
    name: [{"id": 100 * number + row, "question": f"第{number}{row}个问题怎么还款"} for row in range(size)]
    for number, (name, size) in enumerate({"part-0.parquet": 5, "part-1.parquet": 1, "part-2.csv": 7}.items())
}
TEXTS = [row["question"] for rows in ROWS.values() for row in rows]
LINES = ["怎么还款", "如何还款", "今天天气很好"]


def encode(model, *words):
    main(*parse(["--model", str(model), "--device", "cpu", *map(str, words)], EncodeArguments))


@pytest.fixture
def shards(tmp_path):
    """Flags that encode three files below a folder."""
    for name, rows in ROWS.items():
        with table_writer(tmp_path / name, ("id", "question")) as write:
            write(rows)
    return ["--text", tmp_path / "part-*", "--text_column", "question", "--output", tmp_path / "vectors"]


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


def test_shards_are_one_array(tiny_model, shards, tmp_path, capsys):
    """Fails if a row of the set is the vector of another sentence."""
    encode(tiny_model, *shards)
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["files"], result["already_there"]) == (13, 3, 0)
    vectors = open_vectors(tmp_path / "vectors")
    assert vectors.shape == (13, 32) and len(vectors) == 13
    np.testing.assert_allclose(vectors[:], SentenceEncoder.from_pretrained(str(tiny_model)).encode(TEXTS), atol=1e-6)
    for some in (slice(4, 7), slice(5, 6), slice(6, 999), slice(20, 30), slice(-2, None), [12, 0, 5, 5, 6]):
        np.testing.assert_array_equal(vectors[some], np.array(vectors[:])[some])
    assert isinstance(vectors[1:4], np.memmap), "a slice of one file was copied"
    assert vectors.sentences() == TEXTS


def test_shards_may_be_encoded_apart(tiny_model, shards, tmp_path):
    """Fails if shards that were encoded one by one, in any order, differ from those of one command in a single bit."""
    encode(tiny_model, "--text", tmp_path / "part-*.parquet", *shards[2:])
    assert len(open_vectors(tmp_path / "vectors")) == 6, "a set that is to grow"
    encode(tiny_model, *shards)
    for number in (3, 1, 2):
        if number == 2:
            with pytest.raises(InputError, match="2 of 3 shards"):
                open_vectors(tmp_path / "apart")
        encode(tiny_model, *shards[:-1], tmp_path / "apart", "--shard", f"{number}/3")
    assert bytes_of(tmp_path / "apart") == bytes_of(tmp_path / "vectors")
    assert len(bytes_of(tmp_path / "apart")) == 6


def test_what_is_there_is_not_encoded_again(tiny_model, shards, tmp_path, capsys):
    """Fails if a restarted command starts over, keeps an unfinished shard, or misses that an input was edited."""
    encode(tiny_model, *shards)
    whole = bytes_of(tmp_path / "vectors")
    files = sorted((tmp_path / "vectors").glob("*.npy"))
    files[1].unlink()  # stopped after the manifest, before the vectors
    with pytest.raises(InputError, match=r"part-1\.npy is not finished"):
        open_vectors(tmp_path / "vectors")
    times = [file.stat().st_mtime_ns for file in (files[0], files[2])]
    capsys.readouterr()
    encode(tiny_model, *shards)
    result = json.loads(capsys.readouterr().out)
    assert (result["files"], result["already_there"]) == (3, 2)
    assert [file.stat().st_mtime_ns for file in (files[0], files[2])] == times
    assert bytes_of(tmp_path / "vectors") == whole

    with table_writer(tmp_path / "part-2.csv", ("id", "question")) as write:
        write([{"id": 1, "question": "新的问题"}])
    for words, name in (((), "input_sha256"), (("--normalize",), "normalize"), (("--prompt", "问："), "prefix")):
        with pytest.raises(InputError, match=rf"part-.\.npy exists.* {name}.*--overwrite"):
            encode(tiny_model, *shards, *words)
    encode(tiny_model, *shards, "--overwrite")
    assert len(open_vectors(tmp_path / "vectors")) == 7


def test_vectors_that_do_not_belong_together_are_refused(tiny_model, shards, tmp_path):
    """Fails if vectors of two models are searched as one set, or a query of another model is compared with them."""
    folder = tmp_path / "vectors"
    encode(tiny_model, *shards)
    vectors = open_vectors(folder)
    assert len(open_vectors(folder, vectors.manifests[0].model_sha256)) == 13
    with pytest.raises(InputError, match=f"another model, {re.escape(str(tiny_model))}"):
        open_vectors(folder, "0" * 40)
    path = manifest_path(folder / "part-0.npy")
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"model_sha256": "0"}), encoding="utf-8")
    with pytest.raises(InputError, match="different model_sha256"):
        open_vectors(folder)
    np.save(folder / "other.npy", vectors[:])
    with pytest.raises(InputError, match=r"other\.npy\.json"):
        open_vectors(folder)
    with pytest.raises(InputError, match=f"no vectors at .*nowhere.*--output {re.escape(str(tmp_path / 'nowhere'))}"):
        open_vectors(tmp_path / "nowhere")


def test_vectors_and_sentences_come_back(encoded, tiny_model, tmp_path, monkeypatch):
    """Fails if rows are shown as other sentences, the model is not recognised, or a folder cannot be moved."""
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    monkeypatch.chdir("/")
    vectors = open_vectors(tmp_path / "moved/vectors/faq.npy")
    assert vectors.sentences() == LINES and vectors.shape == (3, 32)
    manifest = vectors.manifests[0]
    assert manifest.model_sha256 == fingerprint(SentenceEncoder.from_pretrained(str(tiny_model)))
    assert (manifest.prefix, manifest.input) == ("问：", "../faq.txt")


def test_other_vectors_are_refused(encoded):
    """Fails if truncated vectors, torn ones, those of another run, or rows of zeros that a crash leaves, are taken for
    those of the sentences."""
    whole, vectors = encoded.read_bytes(), np.load(encoded)
    for damaged in (whole[:-1], whole[:50], b"", whole[:-4] + b"\0\0\0\0"):
        encoded.write_bytes(damaged)
        with pytest.raises(InputError, match=r"faq\.npy (is no complete|does not hold)"):
            open_vectors(encoded)
    for other in (vectors[:2], vectors.astype(np.float64), vectors[::-1]):
        np.save(encoded, other)
        with pytest.raises(InputError, match=r"faq\.npy does not hold .*\(3, 32\)"):
            open_vectors(encoded)
    encoded.write_bytes(whole)
    assert len(open_vectors(encoded)) == 3
    vectors = np.ones((4 * SAMPLE, 4), np.float32)
    before = sample_hash(vectors)
    vectors[1000:1032] = 0  # 512 bytes, a sector
    assert sample_hash(vectors) != before


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
        with pytest.raises(InputError, match=r"faq\.npy\.json is no manifest"):
            VectorManifest.read(encoded)
    manifest_path(encoded).unlink()
    with pytest.raises(InputError, match=r"faq\.npy\.json"):
        open_vectors(encoded)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_job_leaves_nothing_torn(tiny_model, tmp_path):
    """Fails if a SIGKILL half-way leaves a shard that looks whole, or a file that stays for ever."""
    for number in range(2):
        lines = "".join(f"第{number}{row}个问题怎么还款\n" for row in range(6_000))
        (tmp_path / f"part-{number}.txt").write_text(lines, encoding="utf-8")
    folder = tmp_path / "vectors"
    words = ["--text", tmp_path / "part-*.txt", "--output", folder]
    command = [sys.executable, "-m", "cosent.encode", "--model", str(tiny_model), *map(str, words), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not list(folder.glob("part-1.npy.*.partial")) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert list(folder.glob("*.partial")), "it was killed too late, and nothing was seen"
    assert (folder / "part-0.npy").is_file() and not (folder / "part-1.npy").exists()
    encode(tiny_model, *words)
    names = ["part-0.npy", "part-0.npy.json", "part-1.npy", "part-1.npy.json"]
    assert sorted(bytes_of(folder)) == names and len(open_vectors(folder)) == 12_000
