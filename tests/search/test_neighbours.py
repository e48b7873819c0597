"""Nearest neighbours: exact ones as by sorting the whole matrix of dot products, and nearly all of them by faiss."""

import logging

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.search import neighbours
from cosent.search.neighbours import approximate, nearest, representatives


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that every border between blocks is crossed."""
    for name, value in (("QUERIES", 7), ("ROWS", 9), ("LARGEST", 12)):
        monkeypatch.setattr(neighbours, name, value)


def integers(rows: int, width: int, seed: int) -> np.ndarray:
    """Vectors with exact dot products, many of them equal."""
    return np.random.default_rng(seed).integers(-2, 3, (rows, width)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 5, 59])
@pytest.mark.parametrize("own", [False, True])
def test_equal_to_sorting_everything(small_blocks, k, own):
    """Fails if a neighbour is lost at the border of a block, ties change their order, or a query finds itself."""
    vectors = integers(60, 8, seed=0)
    queries = vectors[:30]
    exclude = np.where(np.arange(30) % 3 == 0, -1, np.arange(30)) if own else None
    products = queries @ vectors.T
    if own:
        some = exclude >= 0
        products[np.flatnonzero(some), exclude[some]] = -np.inf
    expected = np.argsort(-products, axis=1, kind="stable")[:, :k]
    assert any(len(np.unique(row)) < len(row) for row in products), "no ties: their order is not tested"
    rows, scores = nearest(queries, vectors, k, exclude)
    assert rows.dtype == np.int64 and scores.dtype == np.float32
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, expected, axis=1))


@pytest.mark.filterwarnings("error")
def test_memory_maps(tmp_path, small_blocks):
    """Fails if a file of vectors cannot be searched without loading it, or is changed by a search."""
    vectors = integers(40, 4, seed=1)
    np.save(tmp_path / "vectors.npy", vectors)
    for mode in ("r", "c"):
        mapped = np.load(tmp_path / "vectors.npy", mmap_mode=mode)
        np.testing.assert_array_equal(nearest(vectors[:9], mapped, 3)[0], nearest(vectors[:9], vectors, 3)[0])
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), vectors)


def collected(vectors, threshold, *kept_apart):
    """Representatives and dot products of all blocks, joined."""
    starts, owners, cosines = zip(*representatives(vectors, threshold, *kept_apart), strict=True)
    assert list(starts) == np.cumsum([0, *map(len, owners[:-1])]).tolist()
    return np.concatenate(owners), np.concatenate(cosines)


@pytest.mark.parametrize("threshold", [6.0, 0.0, -100.0, 100.0])
@pytest.mark.parametrize("apart", [False, True])
def test_representatives_one_row_at_a_time(small_blocks, threshold, apart):
    """Fails if a member lies outside the threshold of its representative, joins another than the nearest one, is itself
    represented by a member, or is merged with what it is kept apart from."""
    vectors = integers(45, 6, seed=2)
    products = vectors @ vectors.T

    def kept_apart(earlier: int, later: int) -> bool:
        return apart and (earlier + later) % 3 == 0

    expected: list[int] = []
    for row in range(45):
        near = [one for one in range(row) if expected[one] == one and products[one, row] >= threshold]
        near = [one for one in near if not kept_apart(one, row)]
        expected.append(max(near, key=lambda one: products[one, row], default=row))
    owner, cosine = collected(vectors, threshold, kept_apart)
    assert owner.tolist() == expected
    members = np.flatnonzero(owner != np.arange(45))
    np.testing.assert_array_equal(cosine[members], products[owner[members], members])
    assert (cosine[owner == np.arange(45)] == 1).all() and bool(len(members)) == (threshold < 100)


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
@pytest.mark.parametrize(("number", "row"), [(np.nan, 0), (np.inf, 1), (-np.inf, 30)])
def test_vectors_that_are_not_finite_hide_no_others(small_blocks, number, row):
    """Fails if one vector that overflowed takes the neighbours around it along, or is found itself."""
    vectors = integers(45, 6, seed=4)
    broken = vectors.copy()
    broken[row] = number
    finite = np.delete(np.arange(45), row)
    queries = vectors[finite[:9]]
    for k in (3, 40):
        expected, _ = nearest(queries, vectors[finite], k)
        np.testing.assert_array_equal(nearest(queries, broken, k)[0], finite[expected])
    assert nearest(queries, broken, 45)[0][:, 44].tolist() == [-1] * 9
    owner, _ = collected(broken, 5.0)
    assert owner[row] == row and row not in owner[finite]
    assert owner[finite].tolist() == finite[collected(vectors[finite], 5.0)[0]].tolist()


def test_refusals():
    """Fails if vectors of two models are compared, or more neighbours are promised than there are."""
    with pytest.raises(InputError, match=r"\(1, 3\) and \(2, 4\)"):
        nearest(np.zeros((1, 3), np.float32), np.zeros((2, 4), np.float32), 1)
    with pytest.raises(InputError, match="1 to 1 .* 2"):
        nearest(np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32), 2, exclude=np.array([0]))
    rows, scores = nearest(np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32), 2)
    assert rows.shape == scores.shape == (0, 2)


@pytest.fixture
def vectors():
    pytest.importorskip("faiss")
    found = np.random.default_rng(0).normal(size=(3000, 16)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ["HNSW32,Flat;efSearch=64", "IVF64,Flat;nprobe=32", "SQ8"])
def test_nearly_the_exact_neighbours(vectors, tmp_path, kind, caplog, monkeypatch):
    """Fails if an index misses most neighbours, gives other scores, or is built again at every search."""
    caplog.set_level(logging.INFO, "cosent")
    found = approximate(vectors, kind, tmp_path, "0123456789abcdef0")
    rows, scores = found.nearest(vectors[:50], 5)
    expected, exact = nearest(vectors[:50], vectors, 5)
    np.testing.assert_array_equal(rows[:, 0], np.arange(50))
    assert (rows == expected).mean() > 0.8
    np.testing.assert_allclose(scores[rows == expected], exact[rows == expected], atol=1e-5)
    monkeypatch.setattr(neighbours, "build_index", None)
    again = approximate(vectors, kind, tmp_path, "0123456789abcdef0")
    np.testing.assert_array_equal(again.nearest(vectors[:50], 5)[0], rows)
    assert caplog.text.count("recall@10") == 1 and caplog.text.count(f"faiss {kind} of 3,000 vectors") == 2
    monkeypatch.undo()
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # in HNSW, the place of a link; faiss would read it, and crash
    file.write_bytes(content)
    rebuilt = approximate(vectors, kind, tmp_path, "0123456789abcdef0")
    assert f"{file.name} is damaged" in caplog.text
    np.testing.assert_array_equal(rebuilt.nearest(vectors[:50], 5)[0][:, 0], np.arange(50))


def test_fewer_found_than_asked_for(vectors):
    """Fails if a list of IVF that has too few rows gives a row -1 with a score that looks like one."""
    rows, scores = approximate(vectors, "IVF64,Flat;nprobe=1", None).nearest(vectors[:20], 500)
    assert (rows < 0).any() and np.isinf(scores[rows < 0]).all() and not np.isinf(scores[rows >= 0]).any()


@pytest.mark.parametrize("kind", ["HNSW32,Flat", "IVF1,Flat", "SQ8"])
def test_one_row_and_an_index_of_another_number(vectors, tmp_path, kind):
    """Fails if a single sentence is a traceback, or an index that is not of these vectors gives their rows."""
    assert approximate(vectors[:1], kind, tmp_path, "4").nearest(vectors[:1], 1)[0].tolist() == [[0]]
    assert approximate(vectors[:9], kind, tmp_path, "4").index.ntotal == 9


@pytest.mark.parametrize("factory", ["HNSWx,Flat", "Flat;nprobes=3", "IVF5000,Flat"])
def test_what_faiss_does_not_build_is_told(vectors, factory):
    """Fails if a misspelt index or parameter, or more lists than rows, ends in a trace of faiss."""
    with pytest.raises(InputError, match=f"--faiss {factory}"):
        approximate(vectors, factory, None)
