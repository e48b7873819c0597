"""The directions that a projection keeps, and what it says of the rest."""

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.merge import cosines, fit_projection


def test_on_paper():
    """Fails if other directions than those of the longest extent are kept, or the lost variance is another number."""
    vectors = np.array([[3, 0, 1], [-3, 0, 1], [0, 2, 1], [0, -2, 1]], dtype=np.float32)
    # Mean squares 18/4, 8/4, 1; variances 4.5, 2 and 0, since the third is constant.
    found = fit_projection(vectors, 1)
    np.testing.assert_allclose(np.abs(found.weight), [[1, 0, 0]], atol=1e-6)
    assert found.lost_variance == pytest.approx(2 / 6.5)
    assert fit_projection(vectors, 2).lost_variance == pytest.approx(0, abs=1e-9)


def test_full_width_changes_nothing():
    """Fails if the mean is taken off, or the directions are not orthonormal, so that cosines move at full width."""
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(5000, 24)) * np.linspace(0.1, 3, 24) + 2).astype(np.float32)  # over one block of rows
    full, half = fit_projection(vectors, 24), fit_projection(vectors, 12)
    np.testing.assert_allclose(full.weight @ full.weight.T, np.eye(24), atol=1e-5)
    assert full.moved < 1e-6 and full.lost_variance < 1e-6
    np.testing.assert_allclose(half.weight, full.weight[:12], atol=1e-6)
    centred = vectors - vectors.mean(axis=0)
    kept = ((centred @ half.weight.T) ** 2).sum() / (centred**2).sum()
    assert half.lost_variance == pytest.approx(1 - kept, abs=1e-5) and 0.01 < half.lost_variance < 0.5
    first, second = np.random.default_rng(0).integers(5000, size=(2, 10_000))
    moved = np.abs(cosines(vectors @ half.weight.T, first, second) - cosines(vectors, first, second)).mean()
    assert half.moved == pytest.approx(moved, abs=1e-6) and moved > 1e-3


@pytest.mark.parametrize("width", [0, 5])
def test_widths_that_there_are_not(width):
    """Fails if a width above that of the vectors is padded, or one of 0 gives empty vectors."""
    with pytest.raises(InputError, match="--width must be 1 to 4"):
        fit_projection(np.ones((9, 4), np.float32), width)


def test_too_few_sentences():
    """Fails if directions that no sentence has decided are kept as if they were the best."""
    with pytest.raises(InputError, match="at least as many sentences.*got 2"):
        fit_projection(np.ones((2, 4), np.float32), 3)
