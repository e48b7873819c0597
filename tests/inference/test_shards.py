"""Shards: one output per input, whole or absent, and all of them one array."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from cosent.cli import parse
from cosent.data.files import table_writer
from cosent.encode import EncodeArguments, main
from cosent.errors import InputError
from cosent.inference.vectors import manifest_path, open_vectors, rows_path
from cosent.models.bi_encoder import SentenceEncoder

ROWS = {
    name: [{"id": 100 * number + row, "question": f"第{number}{row}个问题怎么还款"} for row in range(size)]
    for number, (name, size) in enumerate({"part-0.parquet": 5, "part-1.parquet": 1, "part-2.csv": 7}.items())
}
TEXTS = [row["question"] for rows in ROWS.values() for row in rows]


def encode(model, *words):
    main(*parse(["--model", str(model), "--device", "cpu", *map(str, words)], EncodeArguments))


@pytest.fixture
def shards(tmp_path):
    """Flags that encode three files below a folder."""
    for name, rows in ROWS.items():
        with table_writer(tmp_path / name, ("id", "question")) as write:
            write(rows)
    return ["--text", tmp_path / "part-*", "--text_column", "question", "--output", tmp_path / "vectors"]


def test_shards_are_one_array(tiny_model, shards, tmp_path, capsys):
    """Fails if a row of the set is the vector of another sentence, or a kept id belongs to another row."""
    encode(tiny_model, *shards, "--keep", "id", "question")
    result = json.loads(capsys.readouterr().out)
    assert (result["rows"], result["files"], result["already_there"]) == (13, 3, 0)
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(TEXTS)
    vectors = open_vectors(tmp_path / "vectors")
    assert vectors.shape == (13, 32) and len(vectors) == 13
    np.testing.assert_allclose(vectors[:], expected, atol=1e-6)
    for some in (slice(4, 7), slice(5, 6), slice(6, 999), slice(20, 30), slice(0, 5), slice(-2, None)):
        np.testing.assert_array_equal(vectors[some], vectors[:][some])
    picked = [12, 0, 5, 5, 6]
    np.testing.assert_array_equal(vectors[picked], vectors[:][picked])
    assert isinstance(vectors[1:4], np.memmap), "a slice of one file was copied"
    assert vectors.sentences() == TEXTS
    assert [(int(row["id"]), row["question"]) for row in vectors.kept()] == [
        (row["id"], row["question"]) for rows in ROWS.values() for row in rows
    ]


def test_any_engine_may_run_them_apart(tiny_model, shards, tmp_path):
    """Fails if shards that were encoded one by one, in any order, differ from those of one command in a single bit."""
    encode(tiny_model, *shards)
    together = {path.name: path.read_bytes() for path in (tmp_path / "vectors").iterdir()}
    for number in (3, 1, 2):
        if number == 2:
            with pytest.raises(InputError, match="has 2 of 3 shards"):
                open_vectors(tmp_path / "apart")
        encode(tiny_model, *shards[:-1], tmp_path / "apart", "--shard", f"{number}/3")
    assert {path.name: path.read_bytes() for path in (tmp_path / "apart").iterdir()} == together
    assert len(together) == 6


def test_what_is_there_is_not_encoded_again(tiny_model, shards, tmp_path, capsys):
    """Fails if a restarted command starts over, keeps an unfinished shard, or misses that an input was edited."""
    encode(tiny_model, *shards)
    whole = open_vectors(tmp_path / "vectors")[:].copy()
    files = sorted((tmp_path / "vectors").glob("*.npy"))
    files[1].unlink()  # stopped after the manifest, before the vectors
    with pytest.raises(InputError, match=r"part-1.npy is not finished"):
        open_vectors(tmp_path / "vectors")
    times = [file.stat().st_mtime_ns for file in (files[0], files[2])]
    capsys.readouterr()
    encode(tiny_model, *shards)
    result = json.loads(capsys.readouterr().out)
    assert (result["files"], result["already_there"]) == (3, 2)
    assert [file.stat().st_mtime_ns for file in (files[0], files[2])] == times
    np.testing.assert_array_equal(open_vectors(tmp_path / "vectors")[:], whole)

    with table_writer(tmp_path / "part-2.csv", ("id", "question")) as write:
        write([{"id": 1, "question": "新的问题"}])
    with pytest.raises(InputError, match=r"part-2.npy exists.*another input_sha256"):
        encode(tiny_model, *shards)
    with pytest.raises(InputError, match="another input_sha256, normalize|another normalize"):
        encode(tiny_model, *shards, "--normalize")
    encode(tiny_model, *shards, "--overwrite")
    assert len(open_vectors(tmp_path / "vectors")) == 7


def test_vectors_that_do_not_belong_together_are_refused(tiny_model, shards, tmp_path):
    """Fails if vectors of two models are searched as one set, or a query of another model is compared with them."""
    encode(tiny_model, *shards)
    vectors = open_vectors(tmp_path / "vectors")
    assert len(open_vectors(tmp_path / "vectors", vectors.manifests[0].model_sha256)) == 13
    with pytest.raises(InputError, match="was encoded by another model"):
        open_vectors(tmp_path / "vectors", "0" * 40)
    file = tmp_path / "vectors/part-0.npy"
    known = json.loads(manifest_path(file).read_text(encoding="utf-8"))
    manifest_path(file).write_text(json.dumps(known | {"model_sha256": "0"}), encoding="utf-8")
    with pytest.raises(InputError, match="encoded with another model_sha256"):
        open_vectors(tmp_path / "vectors")
    with pytest.raises(InputError, match="There are no vectors at"):
        open_vectors(tmp_path / "nowhere")
    np.save(tmp_path / "vectors/other.npy", vectors[:])
    with pytest.raises(InputError, match="has no other.npy.json"):
        open_vectors(tmp_path / "vectors")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--keep", "number"], "--keep number: expected a column of id, question"),
        (["--shard", "0/3"], "I from 1 to N"),
        (["--shard", "4/3"], "I from 1 to N"),
    ],
)
def test_flags_that_cannot_work_are_refused(tiny_model, shards, words, message):
    """Fails if files are left out in silence, or an error comes late."""
    with pytest.raises(InputError, match=message):
        encode(tiny_model, *shards, *words)


def test_two_inputs_never_share_an_output(tiny_model, tmp_path):
    """Fails if the vectors of a.txt are replaced by those of a.csv."""
    for name in ("a.txt", "a.csv"):
        (tmp_path / name).write_text("好\n", encoding="utf-8")
    with pytest.raises(InputError, match="several files would be written to"):
        encode(tiny_model, "--text", tmp_path / "a.*", "--output", tmp_path / "vectors")
    with pytest.raises(InputError, match="is one file, and there are 2 inputs"):
        encode(tiny_model, "--text", tmp_path / "a.*", "--output", tmp_path / "a.npy")


def test_kept_rows_of_another_run_are_refused(tiny_model, shards, tmp_path):
    """Fails if ids of an older file are shown for the vectors of a newer one."""
    encode(tiny_model, *shards, "--keep", "id")
    with table_writer(rows_path(tmp_path / "vectors/part-0.npy"), ("id",)) as write:
        write([{"id": 1}])
    with pytest.raises(InputError, match="expected the 5 rows of part-0.npy, got 1"):
        open_vectors(tmp_path / "vectors").kept()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_worker_leaves_nothing_torn(tiny_model, tmp_path):
    """Fails if a SIGKILL half-way leaves a shard that looks whole, or a file that stays for ever."""
    for number in range(2):
        lines = "".join(f"第{number}{row}个问题怎么还款\n" for row in range(6_000))
        (tmp_path / f"part-{number}.txt").write_text(lines, encoding="utf-8")
    words = ["--model", tiny_model, "--text", tmp_path / "part-*.txt", "--output", tmp_path / "vectors"]
    command = [sys.executable, "-m", "cosent.encode", *map(str, words), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        second = tmp_path / "vectors"
        end = time.monotonic() + 120
        while not list(second.glob("part-1.npy.*.partial")) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert list(second.glob("*.partial")), "it was killed too late, and nothing was seen"
    assert (second / "part-0.npy").is_file() and not (second / "part-1.npy").exists()
    encode(tiny_model, *words[2:])
    assert sorted(path.name for path in second.iterdir()) == [
        *("part-0.npy", "part-0.npy.json", "part-1.npy", "part-1.npy.json")
    ]
    assert len(open_vectors(second)) == 12_000
