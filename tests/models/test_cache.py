"""The cache of vectors and scores."""

import os
import time

import numpy as np
import pytest
import torch

from cosent.errors import InputError
from cosent.models import cache as cached
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import fingerprint, pair_vectors, prune, sentence_vectors, write_array
from cosent.models.cross_encoder import CrossEncoder

FIRST, SECOND = ["好", "坏", "好"], ["坏", "红", "绿"]


@pytest.fixture
def teacher(tiny_model, tmp_path, monkeypatch) -> SentenceEncoder:
    monkeypatch.setattr(cached, "default_cache", lambda: tmp_path)
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean")


def test_vectors_are_the_teachers_own(teacher, tmp_path, caplog):
    """Fails if sentences get the vector of another, are read twice, not of length 1, or a folder grows untold."""
    with caplog.at_level("INFO", "cosent"):
        vectors, rows = pair_vectors(teacher, FIRST, SECOND)
    (message,) = caplog.messages
    assert "4 sentences" in message and str(tmp_path) in message and "XDG_CACHE_HOME" in message
    assert vectors.shape == (4, 32) and rows.tolist() == [[0, 1], [1, 2], [0, 3]]
    expected = teacher.encode(["好", "绿"], normalize_embeddings=True)
    np.testing.assert_allclose(vectors[rows[2]], expected, atol=1e-6)


def test_what_is_kept_is_used_and_never_wrongly(teacher, tmp_path):
    """Fails if a teacher is run twice, or another teacher, pool, length or corpus gets the vectors of this one."""
    first, _ = pair_vectors(teacher, FIRST, SECOND)
    (file,) = tmp_path.iterdir()
    marked = np.full((4, 32), 7, dtype=np.float32)
    write_array(file, marked)  # what is read again can be told from what is computed again
    assert (pair_vectors(teacher, FIRST, SECOND)[0] == 7).all()
    assert not (pair_vectors(teacher, FIRST, [*SECOND[:2], "白"])[0] == 7).any()
    teacher.max_length = 10
    assert not (pair_vectors(teacher, FIRST, SECOND)[0] == 7).any()
    teacher.max_length = 512
    with torch.no_grad():
        teacher.backbone.embeddings.word_embeddings.weight[100, 0] += 1
    assert not (pair_vectors(teacher, FIRST, SECOND)[0] == 7).any()
    one_by_one = {
        "pool": lambda: setattr(teacher.pooling, "mode", "cls"),
        "case": lambda: setattr(teacher.tokenizer.backend_tokenizer.normalizer[1], "lowercase", False),
        "segments": lambda: setattr(teacher.tokenizer, "model_input_names", ["input_ids", "attention_mask"]),
        "vocabulary": lambda: teacher.tokenizer.add_tokens(["绿绿"]),
    }
    for name, change in one_by_one.items():
        for file in tmp_path.iterdir():
            write_array(file, marked)
        change()
        assert not (pair_vectors(teacher, FIRST, SECOND)[0] == 7).any(), name
    assert not list(tmp_path.glob("*.partial"))


def test_a_judge_of_other_classes_or_in_bfloat16_is_another(tiny_model):
    """Fails if a classifier whose classes were named anew keeps its old scores, or bfloat16 ends in a trace."""
    judge = CrossEncoder.from_pretrained(str(tiny_model), num_labels=2)
    first = fingerprint(judge)
    judge.model.config.id2label = {0: "similar", 1: "dissimilar"}
    assert len({first, fingerprint(judge), fingerprint(judge.to(torch.bfloat16))}) == 3


def test_a_damaged_file_is_named(teacher, tmp_path):
    """Fails if a torn file in the cache ends in a traceback."""
    sentence_vectors(teacher, FIRST)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(InputError, match=f"{file.name}.*Remove it"):
        sentence_vectors(teacher, FIRST)


def test_texts_have_keys_of_their_own(teacher, tmp_path):
    """Fails if sentences that look like others once they are joined, or like a prompt and a text, get their vectors."""
    lists = (["a\0b", "c"], ["a", "b\0c"], ["a\0b\0c"], [("a", "b")], ["a', 'b"], ["a'", "'b"])
    assert len({fingerprint(teacher, texts) for texts in lists}) == len(lists)


def test_the_cache_has_a_limit(teacher, tmp_path, monkeypatch):
    """Fails if the cache of a user fills the disk, or loses what was just computed or is used the most."""
    for name, size, age in (("a.npy", 60, 3), ("b.npy", 30, 2), ("c.npy", 30, 1)):
        (tmp_path / name).write_bytes(bytes(size))
        os.utime(tmp_path / name, (time.time() - 60 * age,) * 2)
    prune(tmp_path / "a.npy", 100)
    assert {file.name for file in tmp_path.iterdir()} == {"a.npy", "b.npy", "c.npy"}
    os.utime(tmp_path / "b.npy")
    prune(tmp_path / "b.npy", 100)
    assert {file.name for file in tmp_path.iterdir()} == {"b.npy", "c.npy"}
    monkeypatch.setattr(prune, "__defaults__", (0,))
    sentence_vectors(teacher, ["好"])
    assert len(list(tmp_path.iterdir())) == 1
