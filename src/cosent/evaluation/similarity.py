"""Cosines of pairs of vectors, rounded so that equal vectors tie."""

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
    overlaps = [character_overlap(first, second) for first, second in zip(sentences1, sentences2, strict=True)]
    return spearman(np.array(overlaps), labels)


def alignment(u: np.ndarray, v: np.ndarray) -> float:
    """Alignment, `mean of |u / |u| - v / |v||^2` over positive pairs: 0 = the same direction, 4 = opposite.

    Args:
        u, v: embeddings of shape `(pairs, hidden)`; row i of u and row i of v mean the same.

    Source: https://arxiv.org/abs/2005.10242, section 4.1, alpha = 2.
    """
    u, v = _unit(u), _unit(v)
    if u.shape != v.shape:
        raise ValueError(
            f"Expected u and v of one shape (pairs, hidden), got {u.shape} and {v.shape}. Broadcasting would compare "
            "sentences of different pairs. Pass one row per pair in both."
        )
    return float(np.mean(np.sum((u - v) ** 2, axis=1)))


def uniformity(embeddings: np.ndarray, t: float = 2.0) -> float:
    """Uniformity, `log of the mean over i < j of exp(-t * |e_i / |e_i| - e_j / |e_j||^2)`.

    0 = collapsed, lower = more spread out.
    Blocks of rows keep memory at 512 x sentences numbers. Needs two sentences.

    Args:
        embeddings: shape `(sentences, hidden)`.
        t: sharpness of the Gaussian kernel.

    Source: https://arxiv.org/abs/2005.10242, section 4.1.
    """
    units = _unit(embeddings)
    count = len(units)
    if count < 2:
        raise ValueError(f"Expected at least two embeddings, got {count}. A mean of nothing would be NaN. Pass more.")
    total = 0.0
    for start in range(0, count, 512):
        block = units[start : start + 512] @ units[start:].T  # (<= 512, rest); |a - b|^2 = 2 - 2 a.b
        kernel = np.exp(2 * t * (np.minimum(block, 1) - 1))
        total += np.triu(kernel, k=1).sum()
    return float(np.log(total / (count * (count - 1) / 2)))


def _unit(embeddings: np.ndarray) -> np.ndarray:
    embeddings = np.asarray(embeddings, dtype=np.float64)
    norms = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    if embeddings.ndim != 2 or not (np.isfinite(norms) & (norms > 0)).all():
        raise ValueError(
            f"Expected embeddings (sentences, hidden), finite and none of them zero, got shape {embeddings.shape}. A "
            "zero or NaN vector has no direction and would make the result NaN. Look at those rows."
        )
    return embeddings / norms


def spread(embeddings: np.ndarray) -> dict[str, float]:
    """Mean cosine, uniformity and effective rank of sentence embeddings `(sentences, hidden)`.

    The effective rank is the exponential of the entropy of the singular values, scaled to sum to 1.

    Source: https://arxiv.org/abs/2005.10242 (uniformity); https://ieeexplore.ieee.org/document/7098875 (rank).
    """
    units = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    count = len(units)
    total = np.square(units.sum(axis=0)).sum()  # sum of all cosines, including those of a sentence with itself
    shares = np.linalg.svd(units, compute_uv=False)
    shares = shares[shares > 0] / shares.sum()
    return {
        "mean_cosine": float((total - count) / (count * (count - 1))),
        "uniformity": uniformity(units),
        "effective_rank": float(np.exp(-(shares * np.log(shares)).sum())),
    }
