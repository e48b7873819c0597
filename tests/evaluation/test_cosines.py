"""Cosines of pairs: ties of equal vectors, and the values elsewhere."""

import numpy as np
import pytest
import torch

from cosent.evaluation.similarity import pair_cosines


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_equal_vectors_tie_and_others_are_exact(library):
    """Fails if pairs of equal sentences are ranked by rounding, or a cosine is off by more than float32 rounds."""
    vectors = np.random.default_rng(0).normal(size=(2, 500, 256))
    vectors[1, :100] = vectors[0, :100]
    vectors[1, 100:200] = -vectors[0, 100:200]
    vectors[:, -1] = 0  # a sentence without tokens
    exact = (vectors[0] * vectors[1]).sum(-1)[:-1] / np.linalg.norm(vectors[:, :-1], axis=-1).prod(0)
    lengths = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    one, other = (vectors / lengths).astype(np.float32)
    assert len(set((one * other).sum(-1)[:100].tolist())) > 1, "a plain product would do"
    found = np.asarray(pair_cosines(library(one), library(other)))
    assert found.dtype == np.float32 and set(found[:100].tolist()) == {1.0} and found[-1] == 0
    np.testing.assert_allclose(found[:-1], exact, atol=3e-7)
    assert pair_cosines(library(one[:1]), library(np.zeros_like(one[:1]))).tolist() == [0.0]
