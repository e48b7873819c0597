"""Similarity of pairs: cosines and character overlap; and principal directions of vectors."""

from collections import Counter

import numpy as np

from cosent.evaluation.significance import spearman


def pair_cosines(first, second):
    """Cosine of each row with the same row of `second`: `1 - |u - v|² / 2`, exactly 1 for equal rows.

    A sum of products is 1 plus or minus a few roundings there, which would rank pairs of equal sentences (4% of PAWSX,
    as `mini` reads it) in a random order, where they tie.

    Args:
        first, second: NumPy arrays or tensors, rows of length 1, or of zeros: their cosine with any row is 0.
    """
    cosines = 1 - ((first - second) ** 2).sum(-1) / 2
    return cosines * (first.any(-1) & second.any(-1))


def character_overlap(sentence1: str, sentence2: str) -> float:
    """Dice coefficient of the bags of characters and character bigrams: 1 = equal sentences, 0 = nothing shared."""
    first, second = (Counter([*text, *zip(text, text[1:], strict=False)]) for text in (sentence1, sentence2))
    return 2 * (first & second).total() / max(1, first.total() + second.total())


def overlap_spearman(sentences1: list[str], sentences2: list[str], labels: np.ndarray) -> float:
    """Spearman correlation of the overlap of each pair with its label; NaN if all labels are equal."""
    return spearman(overlaps(sentences1, sentences2), labels)


def overlaps(sentences1: list[str], sentences2: list[str]) -> np.ndarray:
    """`character_overlap` of each pair, float64 `(pairs,)`."""
    return np.array([character_overlap(first, second) for first, second in zip(sentences1, sentences2, strict=True)])


def principal_directions(units: np.ndarray) -> np.ndarray:
    """Principal axes of vectors `(sentences, width)` as orthonormal columns `(width, width)`, by falling variance."""
    return np.linalg.svd(np.cov(units.T))[0]


def unit(vectors: np.ndarray) -> np.ndarray:
    """np.ndarray scaled to length 1, float32; zeros stay zeros."""
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)).astype(np.float32)
