"""`python -m cosent.encode`: a row per line, whatever the length of the file and the number of processes."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from cosent.cli import run
from cosent.data.files import SENTENCE, open_table
from cosent.encode import EncodeArguments, main
from cosent.errors import InputError
from cosent.inference.vectors import ChunkTask, chunk_runner, chunks_of, encode_file
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.teacher import load_encoder, sentence_vectors

LINES = [f"第{number}个问题怎么还款" for number in range(23)]

CUDA = torch.cuda.is_available()


def die():
    os._exit(1)


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def encode(encoder, load, sentences, output, workers=1, done=None, rows=4096):
    """Encodes a list of sentences into a file."""
    shape = len(sentences), encoder.embedding_dimension
    with chunk_runner(encoder, load, workers, done) as run:
        return encode_file(run, ChunkTask(output, 4, False), chunks_of(sentences, rows), shape)


def job(tiny_model, path, tmp_path, **changes):
    return EncodeArguments(str(tiny_model), [str(path)], str(tmp_path / "vectors.npy"), device="cpu", **changes)


def test_the_job_writes_a_row_per_line(tiny_model, sentences, tmp_path, capsys, monkeypatch):
    """Fails if the command of the README gives other vectors than `encode`, or its JSON line cannot be read."""
    command = ["--model", str(tiny_model), "--text", str(sentences), "--output", str(tmp_path / "vectors.npy")]
    monkeypatch.setattr(sys, "argv", ["encode", *command, "--normalize", "--device", "cpu"])
    run(main, EncodeArguments)
    result = json.loads(capsys.readouterr().out)
    vectors = np.load(result["output"], mmap_mode="r")
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(LINES, normalize=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert (result["rows"], result["dim"], result["truncated"]) == (23, 32, 0)
    assert result["sentences_per_second"] > 0
    assert sorted(os.listdir(tmp_path)) == ["sentences.txt", "vectors.npy", "vectors.npy.json"]


@pytest.mark.slow
def test_two_workers_write_what_one_writes(tiny_model, sentences, tmp_path):
    """If this fails, --workers mixes up rows, or loses some."""
    load = partial(load_encoder, str(tiny_model), "float32", False, "cpu")
    done = []
    for workers in (1, 2):
        encode(load(), load, LINES, tmp_path / f"{workers}.npy", workers, done.append, rows=5)
    one, two = np.load(tmp_path / "1.npy"), np.load(tmp_path / "2.npy")
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert sum(done) == 2 * 23
    assert np.abs(one[0] - one[1]).max() > 1e-4, "all rows are alike: nothing was compared"


@pytest.mark.slow
def test_a_dead_worker_is_an_error(tiny_model, sentences, tmp_path):
    """Fails if a worker killed for lack of memory leaves rows of zeros, or hangs the job."""
    encoder = load_encoder(str(tiny_model), "float32", False, "cpu")
    with pytest.raises(InputError, match="workers died"):
        encode(encoder, die, LINES, tmp_path / "vectors.npy", workers=2)
    assert os.listdir(tmp_path) == ["sentences.txt"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_said_before_anything_is_computed(tiny_model, tmp_path, small_files, workers):
    """If this fails, encode dies of SIGBUS when the disk is full, after hours and without a word."""
    encoder, done = load_encoder(str(tiny_model), "float32", False, "cpu"), []
    with small_files, pytest.raises(InputError, match=r"it takes 0\.2 MiB; .* MiB are free in"):
        encode(encoder, die, ["好"] * 2000, tmp_path / "vectors.npy", workers, done.append)
    assert os.listdir(tmp_path) == [] and not done


@pytest.mark.slow
@pytest.mark.parametrize(("how", "workers"), [("SIGTERM", 1), ("SIGTERM", 2), ("SIGKILL", 2)])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_nothing_outlives_a_job_that_is_stopped(tiny_model, tmp_path, how, workers):
    """If this fails, workers compute on after `docker stop`, and write into the file of the next run."""
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"第{number}个问题\n" for number in range(150_000)), encoding="utf-8")  # minutes of work
    command = ["--model", str(tiny_model), "--text", str(path), "--output", str(tmp_path / "vectors.npy")]
    command += ["--device", "cpu", "--batch_size", "8", "--workers", str(workers)]
    process = subprocess.Popen([sys.executable, "-m", "cosent.encode", *command], stderr=subprocess.PIPE, text=True)
    started = []
    try:
        assert wait_until(lambda: written(tmp_path) or process.poll() is not None) and process.poll() is None
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= workers - 1
        process.send_signal(signal.Signals[how])
        errors = process.communicate(timeout=120)[1]
        assert wait_until(lambda: not any(map(alive, started)))
        if how == "SIGTERM":
            assert process.returncode == 130 and errors.endswith("stopped\n") and "Traceback" not in errors
            assert os.listdir(tmp_path) == ["sentences.txt"]
    finally:
        process.kill()
        process.communicate()
        for child in filter(psutil.Process.is_running, started):
            child.kill()


def written(folder: Path) -> bool:
    """Whether a row is on its way to the output."""
    return any(np.load(partial, mmap_mode="r").any() for partial in folder.glob("*.partial") if partial.stat().st_size)


def wait_until(condition, seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_longer_file_takes_no_more_memory(tiny_model, tmp_path):
    """Fails if a file larger than the memory cannot be encoded."""
    encoder, peaks = SentenceEncoder.from_pretrained(str(tiny_model)), []
    for repetitions in (50, 50, 400):  # the first time, caches fill
        path = tmp_path / "long.txt"
        path.write_text("".join(f"{line}\n" for line in LINES) * repetitions, encoding="utf-8")
        tracemalloc.start()
        with chunk_runner(encoder, die, 1) as run:
            texts = open_table(path, None, SENTENCE, "--text_column").texts()
            task = ChunkTask(tmp_path / "vectors.npy", 64, False)
            encode_file(run, task, chunks_of(texts, 500), (23 * repetitions, 32))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    assert vectors.shape == (23 * 400, 32)
    assert peaks[2] - peaks[1] < vectors.nbytes / 10, peaks


def test_windows_files_are_read_as_they_are_meant(tiny_model, tmp_path):
    """Fails if a byte order mark or a carriage return becomes part of a sentence and moves its vector."""
    path = tmp_path / "windows.txt"
    path.write_bytes("\ufeff怎么还款\r\n我喜欢北京".encode())
    main(job(tiny_model, path, tmp_path))
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(["怎么还款", "我喜欢北京"])
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("好\n\n坏\n".encode(), "line 2: expected a sentence, got an empty line"),
        ("好\n".encode() + "北京".encode("gb18030"), "line 2: expected UTF-8, got other bytes"),
        (b"", "is empty"),
    ],
)
def test_lines_that_cannot_be_encoded_are_named(tiny_model, tmp_path, content, message):
    """Fails if a damaged line shifts every row below it, or gets the vector of another text."""
    path = tmp_path / "sentences.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        main(job(tiny_model, path, tmp_path))


def test_vectors_that_are_not_finite_are_not_published(tiny_model, tmp_path):
    """Fails if a vector of NaN, which float16 makes of an overflow, is stored, or nobody learns of which line it is."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    with torch.no_grad():
        encoder.backbone.embeddings.word_embeddings.weight[encoder.tokenizer("红").input_ids[1]] = torch.nan
    encoder.save_pretrained(tmp_path / "broken")
    (tmp_path / "sentences.txt").write_text("怎么还款\n红色的苹果\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"sentences\.txt: .*nan.* text 2"):
        main(job(tmp_path / "broken", tmp_path / "sentences.txt", tmp_path))
    assert not list(tmp_path.glob("vectors.npy*"))
    with pytest.raises(InputError, match="nan.* text 2"):
        sentence_vectors(encoder, ["怎么还款", "红色的苹果"], tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_empty_lines_may_be_kept(tiny_model, tmp_path, capsys):
    """Fails if rows and lines no longer match in a file that is known to hold empty lines."""
    path = tmp_path / "sentences.txt"
    path.write_text("好\n\n坏\n", encoding="utf-8")
    main(job(tiny_model, path, tmp_path, keep_empty_lines=True))
    assert json.loads(capsys.readouterr().out)["rows"] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "exists, and nothing was written: it has no vectors.npy.json"),
        ({"output": "nowhere/vectors.npy"}, "folder nowhere does not exist"),
        ({"workers": 0}, "--workers must be at least 1, got 0"),
        ({"device": "cuda", "int8": True}, "for the CPU"),
        pytest.param({"device": "cuda"}, "no CUDA device", marks=pytest.mark.skipif(CUDA, reason="CUDA is there")),
        ({"int8": True, "dtype": "bfloat16"}, "already sets the type"),
        ({"text": ["nowhere.txt"]}, "no file nowhere.txt"),
    ],
)
def test_flags_that_cannot_work_are_refused_at_once(tiny_model, sentences, tmp_path, changes, message):
    """Fails if vectors of hours are overwritten, or an error comes after minutes of work."""
    arguments = job(tiny_model, sentences, tmp_path)
    arguments.overwrite = bool(changes)
    (tmp_path / "vectors.npy").write_bytes(b"precious")
    for name, value in changes.items():
        setattr(arguments, name, value)
    with pytest.raises(InputError, match=message):
        main(arguments)
    assert (tmp_path / "vectors.npy").read_bytes() == b"precious"


def test_the_input_is_never_its_own_output(tiny_model, sentences, tmp_path):
    """If this fails, --overwrite turns a user's text into vectors."""
    before = sentences.read_bytes()
    arguments = job(tiny_model, sentences, tmp_path)
    arguments.output, arguments.overwrite = str(sentences), True
    with pytest.raises(InputError, match="is the --text"):
        main(arguments)
    assert sentences.read_bytes() == before


def test_int8_and_cut_sentences_are_reported(tiny_model, sentences, tmp_path, capsys, caplog):
    """If this fails, --int8 does not run, or a user does not learn that a sentence was cut."""
    with open(sentences, "a", encoding="utf-8") as file:
        file.write("长" * 600 + "\n")
    main(job(tiny_model, sentences, tmp_path, int8=True))
    assert json.loads(capsys.readouterr().out)["truncated"] == 1
    assert "1 of 24 sentences are longer than 512 tokens" in caplog.text
    assert np.isfinite(np.load(tmp_path / "vectors.npy")).all()
