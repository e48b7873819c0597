"""What each word or character contributes to the score of a pair: the score minus the score without it."""

import re
from collections.abc import Callable

import numpy as np

MOST_PIECES = 48  # per sentence: a pair takes at most 97 scores
CJK = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
JOINED = "(?:\u200d\\S|[\u0300-\u036f\ufe0f\U0001f3fb-\U0001f3ff])*"  # an emoji of several code points stays whole
PIECE = re.compile(f"(?:(?![{CJK}])\\w)+|\\S{JOINED}")

Score = Callable[[list[str], list[str]], np.ndarray]  # scores of pairs
Parts = list[tuple[str, float]]  # the pieces of a sentence, and what each contributes


def contributions(score: Score, one: str, other: str) -> tuple[float, Parts, Parts]:
    """The score of a pair, and what each piece of both sentences adds to it; all in one call of `score`."""
    spans = [pieces(one), pieces(other)]
    shorter = [[text[:start] + text[stop:] for start, stop in some]
               for text, some in zip((one, other), spans, strict=True)]  # fmt: skip
    first = [one, *shorter[0], *[one] * len(shorter[1])]
    second = [other, *[other] * len(shorter[0]), *shorter[1]]
    total, *without = (float(value) for value in score(first, second))
    added = iter(total - value for value in without)
    parts = [[(text[start:stop], next(added)) for start, stop in some]
             for text, some in zip((one, other), spans, strict=True)]  # fmt: skip
    return total, parts[0], parts[1]


def pieces(text: str) -> list[tuple[int, int]]:
    """Spans of single Chinese characters, words of other scripts and marks; neighbours together if there are many."""
    found = [match.span() for match in PIECE.finditer(text)]
    together = -(-len(found) // MOST_PIECES)
    groups = [found[start : start + together] for start in range(0, len(found), together or 1)]
    return [(group[0][0], group[-1][1]) for group in groups]
