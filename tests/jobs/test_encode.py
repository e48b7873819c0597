"""`cosent encode`: a row per line, whatever the length of the file."""

import json
import os
import sys

import numpy as np
import pytest

from cosent.cli import run
from cosent.errors import InputError
from cosent.jobs.encode import CHUNK, EncodeArguments, main, write_vectors
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import fingerprint

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
    monkeypatch.setattr(sys, "argv", ["encode", *command, "--device", "cpu"])
    run(main, EncodeArguments)
    result = json.loads(capsys.readouterr().out)
    vectors = np.load(result["output"], mmap_mode="r")
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    np.testing.assert_allclose(vectors, encoder.encode(LINES, normalize_embeddings=True), atol=1e-5)
    assert json.loads((tmp_path / "vectors.npy.json").read_text()) == result and result["sha256"] == fingerprint(
        encoder
    )
    assert (result["rows"], result["dim"], result["truncated"]) == (23, 32, 0)
    assert result["sentences_per_second"] > 0
    assert sorted(os.listdir(tmp_path)) == ["sentences.txt", "vectors.npy", "vectors.npy.json"]


def test_chunks_are_joined_in_order(tmp_path):
    """Fails if rows of a long file change places, or a file that changes while it is read has a vector file."""

    def embed(texts):
        return np.array([[int(text)] * 4 for text in texts]), 1

    rows = 10_000
    cut = write_vectors(tmp_path / "v.npy", (rows, 4), map(str, range(rows)), embed)
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    assert cut == -(-rows // CHUNK) and vectors.dtype == np.float32 and (vectors == np.arange(rows)[:, None]).all()
    with pytest.raises(InputError, match="3 sentences, then 2"):
        write_vectors(tmp_path / "v.npy", (3, 4), iter("12"), embed)


def test_int8_and_cut_sentences_are_reported(tiny_model, sentences, tmp_path, capsys, caplog):
    """If this fails, --int8 does not run, or a user does not learn that a sentence was cut."""
    with open(sentences, "a", encoding="utf-8") as file:
        file.write("长" * 600 + "\n")
    main(job(tiny_model, sentences, tmp_path, int8=True))
    assert json.loads(capsys.readouterr().out)["truncated"] == 1
    assert "1 of 24 sentences are longer than 512 tokens" in caplog.text
    assert np.isfinite(np.load(tmp_path / "vectors.npy")).all()
