"""Similarity of pairs: cosines, character overlap, and how the vectors of a model spread."""

from collections import Counter

import numpy as np

from cosent.evaluation.significance import spearman


def pair_cosines(one, other):
    """Cosine of each row with the same row of `other`: `1 - |u - v|² / 2`, exactly 1 for equal rows.

    A sum of products is 1 plus or minus a few roundings there, which would rank pairs of equal sentences (4% of PAWSX,
    as `mini` reads it) in a random order, where they tie.

    Args:
        one, other: NumPy arrays or tensors, rows of length 1, or of zeros: their cosine with any row is 0.
    """
    cosines = 1 - ((one - other) ** 2).sum(-1) / 2
    return cosines * (one.any(-1) & other.any(-1))


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


def spread(embeddings: np.ndarray) -> dict[str, float]:
    """Mean cosine, uniformity and effective rank of sentence embeddings `(sentences, hidden)`, at least two.

    The effective rank is the exponential of the entropy of the singular values, scaled to sum to 1.

    Source: https://arxiv.org/abs/2005.10242 (uniformity); https://ieeexplore.ieee.org/document/7098875 (rank).
    """
    embeddings = np.asarray(embeddings, dtype=np.float64)
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    count = len(embeddings)
    if embeddings.ndim != 2 or count < 2 or not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError(f"Expected two or more finite embeddings other than zero, got shape {embeddings.shape}.")
    units = embeddings / norms
    total = np.square(units.sum(axis=0)).sum()  # sum of all cosines, including those of a sentence with itself
    shares = np.linalg.svd(units, compute_uv=False)
    shares = shares[shares > 0] / shares.sum()
    return {
        "mean_cosine": float((total - count) / (count * (count - 1))),
        "uniformity": uniformity(units),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())),
    }


def uniformity(units: np.ndarray) -> float:
    """`log of the mean over i < j of exp(-2 |e_i - e_j|^2)` of unit vectors: 0 = collapsed, lower = more spread out.

    Blocks of rows keep memory at 512 x sentences numbers. Source: https://arxiv.org/abs/2005.10242, section 4.1, t = 2.
    """
    count, total = len(units), 0.0
    for start in range(0, count, 512):
        block = units[start : start + 512] @ units[start:].T  # (<= 512, rest); |a - b|^2 = 2 - 2 a.b
        total += np.triu(np.exp(4 * (np.minimum(block, 1) - 1)), k=1).sum()
    return float(np.log(total / (count * (count - 1) / 2)))


def hubness(units: np.ndarray, k: int = 10) -> float:
    """Skewness of how often each unit vector is among the `k` nearest of the others: 0 = evenly, above 1 = hubs.

    Source: https://jmlr.org/papers/v11/radovanovic10a.html, section 3.
    """
    occurrences, k = np.zeros(len(units)), min(k, len(units) - 1)
    for start in range(0, len(units), 512):
        cosines = units[start : start + 512] @ units.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        np.add.at(occurrences, np.argpartition(-cosines, k - 1, axis=1)[:, :k].ravel(), 1)
    gaps = occurrences - occurrences.mean()
    deviation = np.sqrt(np.mean(gaps**2))
    return float(np.mean(gaps**3) / deviation**3) if deviation else 0.0


def spectrum(units: np.ndarray) -> np.ndarray:
    """Share of the squared length of unit vectors `(sentences, hidden)` in the first 1, 2, ... principal directions."""
    energy = np.linalg.svd(np.asarray(units, np.float64), compute_uv=False) ** 2
    return np.cumsum(energy) / energy.sum()


def principal_directions(units: np.ndarray) -> np.ndarray:
    """Orthonormal columns `(width, width)`, that of the greatest variance of vectors `(sentences, width)` first."""
    return np.linalg.svd(np.cov(units.T))[0]
