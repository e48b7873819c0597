"""Nearest neighbours, as by sorting the whole matrix of dot products."""

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.jobs import dedup
from cosent.jobs.dedup import representatives
from cosent.search import neighbours
from cosent.search.neighbours import nearest


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that every border between blocks is crossed."""
    for name, value in (("QUERIES", 7), ("ROWS", 9), ("LARGEST", 12)):
        monkeypatch.setattr(neighbours, name, value)
        monkeypatch.setattr(dedup, name, value, raising=False)


def integers(rows: int, width: int, seed: int) -> np.ndarray:
    """Vectors with exact dot products, many of them equal."""
    return np.random.default_rng(seed).integers(-2, 3, (rows, width)).astype(np.float32)


@pytest.mark.parametrize("k", [1, 5, 59])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_equal_to_sorting_everything(small_blocks, k, exclude_self):
    """Fails if a neighbour is lost at the border of a block, ties change their order, or a query finds itself."""
    vectors = integers(60, 8, seed=0)
    queries = vectors[:30]
    exclude = np.where(np.arange(30) % 3 == 0, -1, np.arange(30)) if exclude_self else None
    products = queries @ vectors.T
    if exclude_self:
        excluded = exclude >= 0
        products[np.flatnonzero(excluded), exclude[excluded]] = -np.inf
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


@pytest.mark.parametrize("apart", [False, True])
def test_representatives_one_row_at_a_time(small_blocks, apart):
    """Fails if a member lies outside the threshold of its representative, joins another than the nearest one, is itself
    represented by a member, is merged with what it is kept apart from, or follows another threshold."""
    vectors = integers(45, 6, seed=2)
    products = vectors @ vectors.T

    def kept_apart(earlier: int, later: int) -> bool:
        return apart and (earlier + later) % 3 == 0

    thresholds = [6.0, 0.0, -100.0, 100.0]
    owners, cosines = representatives(vectors, thresholds, kept_apart)
    for threshold, owner, cosine in zip(thresholds, owners, cosines, strict=True):
        expected: list[int] = []
        for row in range(45):
            near = [first for first in range(row) if expected[first] == first and products[first, row] >= threshold]
            near = [first for first in near if not kept_apart(first, row)]
            expected.append(max(near, key=lambda first: products[first, row], default=row))
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
    (owner,), _ = representatives(broken, [5.0])
    assert owner[row] == row and row not in owner[finite]
    assert owner[finite].tolist() == finite[representatives(vectors[finite], [5.0])[0][0]].tolist()


def test_refusals():
    """Fails if vectors of two models are compared, or more neighbours are promised than there are."""
    with pytest.raises(InputError, match=r"\(1, 3\) and \(2, 4\)"):
        nearest(np.zeros((1, 3), np.float32), np.zeros((2, 4), np.float32), 1)
    with pytest.raises(InputError, match="1 to 1 .* 2"):
        nearest(np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32), 2, exclude=np.array([0]))
    rows, scores = nearest(np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32), 2)
    assert rows.shape == scores.shape == (0, 2)
