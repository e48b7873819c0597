"""Approximate neighbours by faiss: the exact ones, nearly all of them, with the same answers to the same questions."""

import logging
import sys

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.inference import neighbours as module
from cosent.inference.neighbours import approximate, nearest

pytest.importorskip("faiss")


@pytest.fixture
def vectors():
    found = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_nearly_the_exact_neighbours(vectors, tmp_path, kind, caplog, monkeypatch):
    """Fails if an index misses most neighbours, gives other scores, or is built again at every search."""
    monkeypatch.setattr(module, "READ_SHARE", 2)  # of random vectors, the nearest ones lie in any list
    caplog.set_level(logging.INFO, "cosent")
    found = approximate(vectors, kind, tmp_path, "0123456789abcdef0")
    rows, scores = found.nearest(vectors[:50], 5)
    expected, exact = nearest(vectors[:50], vectors, 5)
    np.testing.assert_array_equal(rows[:, 0], np.arange(50))
    assert (rows == expected).mean() > 0.8
    np.testing.assert_allclose(scores[rows == expected], exact[rows == expected], atol=1e-5)
    monkeypatch.setattr(module, "build", None)
    again = approximate(vectors, kind, tmp_path, "0123456789abcdef0")
    np.testing.assert_array_equal(again.nearest(vectors[:50], 5)[0], rows)
    assert caplog.text.count(f"faiss {kind} of 3,000 vectors: recall@10") == 2 and "read from" in caplog.text


def test_the_excluded_row_is_no_neighbour(vectors, tmp_path):
    """Fails if a sentence becomes its own hard negative, or loses a neighbour because it was not found itself."""
    found = approximate(vectors, "auto", tmp_path, "1" * 16)
    rows, _ = found.nearest(vectors[:50], 5, exclude=np.where(np.arange(50) % 2, -1, np.arange(50)))
    expected, _ = nearest(vectors[:50], vectors, 5, exclude=np.where(np.arange(50) % 2, -1, np.arange(50)))
    assert rows.shape == (50, 5) and (rows == expected).mean() > 0.9
    assert not (rows[::2] == np.arange(50)[::2, None]).any() and (rows[1::2, 0] == np.arange(50)[1::2]).all()


def test_fewer_found_than_asked_for(vectors, tmp_path, monkeypatch):
    """Fails if a list of IVF that has too few rows gives a row -1 with a score that looks like one."""
    monkeypatch.setattr(module, "READ_SHARE", 1000)  # one list
    rows, scores = approximate(vectors, "ivf", tmp_path, "2" * 16).nearest(vectors[:20], 500)
    assert (rows < 0).any() and np.isinf(scores[rows < 0]).all() and not np.isinf(scores[rows >= 0]).any()


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_one_row_and_an_index_of_another_number(vectors, tmp_path, kind):
    """Fails if a single sentence is a traceback, or an index that is not of these vectors gives their rows."""
    assert approximate(vectors[:1], kind, tmp_path, "4").nearest(vectors[:1], 1)[0].tolist() == [[0]]
    assert approximate(vectors[:9], kind, tmp_path, "4").index.ntotal == 9


def test_faiss_that_is_not_installed(vectors, tmp_path, monkeypatch):
    """Fails if a missing package is a traceback."""
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"pip install 'cosent\[faiss\]'"):
        approximate(vectors, "hnsw", tmp_path, "3" * 16)
