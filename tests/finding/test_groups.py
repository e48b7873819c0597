"""Groups of rows that pairs link."""

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.inference import index as module
from cosent.inference.index import components, dense_clusters


@pytest.mark.parametrize("held", [1, 1000])
def test_rows_linked_by_others_are_one_group(monkeypatch, held):
    """Fails if a chain of near-duplicates is cut where pairs arrive in several blocks."""
    monkeypatch.setattr(module, "PAIRS", held)
    blocks = [([0, 4], [3, 5]), ([3], [6]), ([], []), ([2], [4])]
    found = components(((np.array(a, int), np.array(b, int)) for a, b in blocks), 8)
    assert found.tolist() == [0, 1, 2, 0, 2, 2, 0, 3]
    assert components([], 3).tolist() == [0, 1, 2]


def test_dense_clusters():
    """Fails if two dense places become one group, or a stranger joins one."""
    rng = np.random.default_rng(0)
    centres = np.eye(8, dtype=np.float32)[[0, 1]]
    vectors = np.r_[centres.repeat(6, axis=0) + 0.02 * rng.normal(size=(12, 8)), -np.eye(8)[[5]]].astype(np.float32)
    found = dense_clusters(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 4)
    assert found.tolist() == [0] * 6 + [1] * 6 + [2]
    with pytest.raises(InputError, match="HDBSCAN groups 14 to 50,000 sentences here, got 13"):
        dense_clusters(vectors, 14)
