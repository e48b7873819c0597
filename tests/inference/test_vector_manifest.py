"""What is next to a file of vectors: enough to refuse any vectors that are not those of the sentences."""

import json
import shutil
import sys

import numpy as np
import pytest

from cosent.cli import run
from cosent.encode import EncodeArguments, main
from cosent.errors import InputError
from cosent.inference.vectors import SAMPLE, manifest_path, read_manifest, read_sentences, read_vectors
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.teacher import fingerprint

LINES = ["怎么还款", "如何还款", "今天天气很好"]


@pytest.fixture
def encoded(tiny_model, tmp_path, monkeypatch):
    """The path of vectors in a folder next to the one of their sentences; `cosent encode` wrote them."""
    (tmp_path / "vectors").mkdir()
    (tmp_path / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    vectors = tmp_path / "vectors/faq.npy"
    words = ["--model", str(tiny_model), "--text", str(tmp_path / "faq.txt"), "--output", str(vectors)]
    monkeypatch.setattr(sys, "argv", ["encode", *words, "--device", "cpu", "--int8", "--prompt", "问："])
    run(main, EncodeArguments)
    return vectors


def read(vectors):
    manifest = read_manifest(vectors)
    return read_vectors(vectors, manifest), read_sentences(vectors, manifest)


def test_vectors_and_sentences_come_back(encoded, tiny_model, tmp_path, monkeypatch):
    """Fails if rows are shown as other sentences, the model is not recognised, or a folder cannot be moved."""
    shutil.copytree(tmp_path, tmp_path / "moved", ignore=shutil.ignore_patterns("moved"))
    monkeypatch.chdir("/")
    vectors, sentences = read(tmp_path / "moved/vectors/faq.npy")
    assert sentences == LINES and vectors.shape == (3, 32)
    manifest = read_manifest(encoded)
    assert manifest.model_sha256 == fingerprint(SentenceEncoder.from_pretrained(str(tiny_model)), [])
    assert (manifest.prompt, manifest.input) == ("问：", "../faq.txt")


def test_other_vectors_are_refused(encoded):
    """Fails if truncated vectors, torn ones, or those of another run are taken for those of the sentences."""
    whole, vectors = encoded.read_bytes(), np.load(encoded)
    for damaged in (whole[:-1], whole[:50], b"", whole[:-4] + b"\0\0\0\0"):
        encoded.write_bytes(damaged)
        with pytest.raises(InputError, match=r"no complete file of vectors|expected the 3 x 32 vectors"):
            read(encoded)
    for other in (vectors[:2], vectors.astype(np.float64), vectors[::-1]):
        np.save(encoded, other)
        with pytest.raises(InputError, match="sentences would be found that do not belong to the vectors"):
            read(encoded)
    encoded.write_bytes(whole)
    assert len(read(encoded)[0]) == 3


def test_a_chunk_that_was_never_written_is_noticed(encoded):
    """Fails if rows of zeros, which a crash leaves where a block never reached the disk, pass for vectors."""
    rows = 4 * SAMPLE
    vectors = np.ones((rows, 4), np.float32)
    np.save(encoded, vectors)
    known = json.loads(manifest_path(encoded).read_text(encoding="utf-8"))
    manifest = type(read_manifest(encoded)).of(encoded, *[known[name] for name in ("model", "model_sha256", "prompt")],
                                               encoded, "")  # fmt: skip
    assert len(read_vectors(encoded, manifest)) == rows
    vectors[1000:1032] = 0  # 512 bytes, a sector
    np.save(encoded, vectors)
    with pytest.raises(InputError, match="Encode the sentences again"):
        read_vectors(encoded, manifest)


def test_changed_or_missing_sentences_are_refused(encoded, tmp_path):
    """Fails if rows are shown as lines of a file that was edited after it was encoded."""
    manifest = read_manifest(encoded)
    (tmp_path / "faq.txt").write_text("新的问题\n" + "\n".join(LINES), encoding="utf-8")
    with pytest.raises(InputError, match=r"faq\.txt has changed since .* was written"):
        read_sentences(encoded, manifest)
    (tmp_path / "faq.txt").unlink()
    with pytest.raises(InputError, match="which is not there"):
        read_sentences(encoded, manifest)


def test_a_manifest_that_is_none_is_refused(encoded):
    """Fails if vectors of another tool, or of an older version, are searched as if their model were known."""
    for content in ("[1]", "{", '{"rows": 3}'):
        manifest_path(encoded).write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=r"expected what `cosent encode` writes next to vectors"):
            read_manifest(encoded)
    manifest_path(encoded).unlink()
    with pytest.raises(InputError, match=r"has no faq\.npy\.json next to it"):
        read_manifest(encoded)
