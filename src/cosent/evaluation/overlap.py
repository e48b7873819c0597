"""Character overlap of two sentences: the similarity without any model, which a trained one has to beat."""

from collections import Counter

import numpy as np

from cosent.evaluation.significance import spearman


def character_overlap(sentence1: str, sentence2: str) -> float:
    """Dice coefficient of the bags of characters and character bigrams: 1 = equal sentences, 0 = nothing shared."""
    first, second = (Counter([*text, *zip(text, text[1:], strict=False)]) for text in (sentence1, sentence2))
    return 2 * (first & second).total() / max(1, first.total() + second.total())


def overlap_spearman(sentences1: list[str], sentences2: list[str], labels: np.ndarray) -> float:
    """Spearman correlation of the overlap of each pair with its label; NaN if all labels are equal."""
    overlaps = [character_overlap(first, second) for first, second in zip(sentences1, sentences2, strict=True)]
    return spearman(np.array(overlaps), labels)
