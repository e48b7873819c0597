"""Cosines of pairs of vectors, rounded so that equal vectors tie."""


def pair_cosines(one, other):
    """Cosine of each row with the same row of `other`: `1 - |u - v|² / 2`, exactly 1 for equal rows.

    A sum of products is 1 plus or minus a few roundings there, which would rank pairs of equal sentences (4% of PAWSX,
    as `mini` reads it) in a random order, where they tie.

    Args:
        one, other: NumPy arrays or tensors, rows of length 1, or of zeros: their cosine with any row is 0.
    """
    cosines = 1 - ((one - other) ** 2).sum(-1) / 2
    return cosines * (one.any(-1) & other.any(-1))
