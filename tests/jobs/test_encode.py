"""`cosent encode`: a row per line, whatever the length of the file and the number of processes."""

import json
import os
import sys
import tracemalloc

import numpy as np
import pytest

from cosent.cli import run
from cosent.errors import InputError
from cosent.jobs.encode import EncodeArguments, main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.search import vectors as module
from cosent.search.vectors import VectorManifest, encode_file

LINES = [f"第{number}个问题怎么还款" for number in range(23)]


@pytest.fixture
def sentences(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def job(tiny_model, path, tmp_path, **changes):
    return EncodeArguments(
        text=str(path), output=str(tmp_path / "vectors.npy"), model=str(tiny_model), device="cpu", **changes
    )


def test_the_job_writes_a_row_per_line(tiny_model, sentences, tmp_path, capsys, monkeypatch):
    """Fails if the command of the README gives other vectors than `encode`, or its JSON line cannot be read."""
    command = ["--model", str(tiny_model), "--text", str(sentences), "--output", str(tmp_path / "vectors.npy")]
    monkeypatch.setattr(sys, "argv", ["encode", *command, "--normalize", "--device", "cpu"])
    run(main, EncodeArguments)
    result = json.loads(capsys.readouterr().out)
    vectors = np.load(result["output"], mmap_mode="r")
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(LINES, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert (result["rows"], result["dim"], result["truncated"]) == (23, 32, 0)
    assert result["sentences_per_second"] > 0
    assert sorted(os.listdir(tmp_path)) == ["sentences.txt", "vectors.npy", "vectors.npy.json"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows bounds no file")
def test_a_full_disk_is_reported_before_anything_is_computed(tiny_model, tmp_path, small_files):
    """If this fails, encode dies of SIGBUS when the disk is full, after hours and without a word."""
    encoder, settings, done = SentenceEncoder.from_pretrained(str(tiny_model)), VectorManifest("tiny", "", 32), []
    (tmp_path / "sentences.txt").write_text("好\n" * 2000, encoding="utf-8")
    with small_files, pytest.raises(InputError, match=r"vectors\.npy could not be written"):
        encode_file(encoder, tmp_path / "sentences.txt", tmp_path / "vectors.npy", settings, progress=done.append)
    assert os.listdir(tmp_path) == ["sentences.txt"] and not done


def test_a_longer_file_takes_no_more_memory(tiny_model, tmp_path, monkeypatch):
    """Fails if a file larger than the memory cannot be encoded."""
    monkeypatch.setattr(module, "CHUNK_ROWS", 500)
    encoder, settings, peaks = SentenceEncoder.from_pretrained(str(tiny_model)), VectorManifest("tiny", "", 32), []
    for repetitions in (50, 50, 400):  # the first time, caches fill
        path = tmp_path / f"{len(peaks)}.txt"
        path.write_text("".join(f"{line}\n" for line in LINES) * repetitions, encoding="utf-8")
        tracemalloc.start()
        encode_file(encoder, path, path.with_suffix(".npy"), settings)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    vectors = np.load(tmp_path / "2.npy", mmap_mode="r")
    assert vectors.shape == (23 * 400, 32)
    assert peaks[2] - peaks[1] < vectors.nbytes / 10, peaks


def test_nothing_is_overwritten_by_mistake(tiny_model, sentences, tmp_path):
    """Fails if a file is replaced without --overwrite, or a folder or a missing input is found after the model."""
    (tmp_path / "vectors.npy").write_bytes(b"precious")
    with pytest.raises(InputError, match=r"vectors\.npy exists.*--overwrite"):
        main(job(tiny_model, sentences, tmp_path))
    assert (tmp_path / "vectors.npy").read_bytes() == b"precious"
    main(job(tiny_model, sentences, tmp_path, overwrite=True))
    assert len(np.load(tmp_path / "vectors.npy")) == len(LINES)


def test_int8_and_cut_sentences_are_reported(tiny_model, sentences, tmp_path, capsys, caplog):
    """If this fails, --int8 does not run, or a user does not learn that a sentence was cut."""
    with open(sentences, "a", encoding="utf-8") as file:
        file.write("长" * 600 + "\n")
    main(job(tiny_model, sentences, tmp_path, int8=True))
    assert json.loads(capsys.readouterr().out)["truncated"] == 1
    assert "1 of 24 sentences are longer than 512 tokens" in caplog.text
    assert np.isfinite(np.load(tmp_path / "vectors.npy")).all()
