"""Project vectors to fewer dimensions: the directions in which given sentences have most of their length (PCA)."""

from dataclasses import dataclass

import numpy as np

from cosent.errors import InputError

PAIRS = 10_000  # random ones, whose cosines say what is lost


@dataclass(frozen=True)
class Projection:
    """Orthonormal directions, and what is lost outside of them.

    Args:
        weight: float32 of shape `(width, dimensions)`, orthonormal rows.
        lost_variance: share of the variance of the sentences' vectors.
        moved: mean absolute change of the cosine of random pairs of them.
    """

    weight: np.ndarray
    lost_variance: float
    moved: float


def fit_projection(vectors: np.ndarray, width: int) -> Projection:
    """The `width` orthonormal directions that keep most of the squared length of vectors.

    The mean is not taken off, as PCA does: cosines are between vectors from the origin, and at full width they stay
    exactly as they are.

    Args:
        vectors: float32 of shape `(sentences, dimensions)`.

    Raises:
        InputError: fewer sentences than `width`, or a width that is not from 1 to `dimensions`.
    """
    count, dimensions = vectors.shape
    if not 1 <= width <= dimensions:
        raise InputError(f"--width must be 1 to {dimensions}, the width of all vectors together, got {width}.")
    if count < width:
        raise InputError(
            f"--width {width} needs at least as many sentences to choose the directions by, got {count}: the others "
            "would be arbitrary. Name more with --text or --corpus, or take fewer dimensions."
        )
    moment = np.zeros((dimensions, dimensions))
    for start in range(0, count, 4096):
        part = vectors[start : start + 4096].astype(np.float64)
        moment += part.T @ part
    _, directions = np.linalg.eigh(moment / count)  # by rising share
    weight = np.ascontiguousarray(directions[:, ::-1][:, :width].T)
    mean = vectors.mean(axis=0, dtype=np.float64)
    variance = np.trace(moment) / count - mean @ mean
    kept = np.einsum("wd,de,we->", weight, moment / count, weight) - np.sum((weight @ mean) ** 2)
    return Projection(weight.astype(np.float32), max(0.0, 1 - kept / variance), change(vectors, weight))


def change(vectors: np.ndarray, weight: np.ndarray) -> float:
    """Mean absolute change of the cosine of random pairs of vectors by a projection."""
    first, second = np.random.default_rng(0).integers(len(vectors), size=(2, PAIRS))
    projected = vectors @ weight.T.astype(np.float32)
    before, after = (cosines(of, first, second) for of in (vectors, projected))
    return float(np.abs(after - before).mean())


def cosines(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.einsum("pd,pd->p", unit[first], unit[second])
