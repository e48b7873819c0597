"""Scores of similar and dissimilar pairs apart."""

import numpy as np


def split_by(labels: np.ndarray, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Values of dissimilar and of similar pairs: labels up to the middle of their range, and above it."""
    similar = labels > (labels.min() + labels.max()) / 2
    return [("dissimilar", values[~similar]), ("similar", values[similar])]
