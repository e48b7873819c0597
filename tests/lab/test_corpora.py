"""Corpora of the lab that are other corpora with other labels."""

import numpy as np

from lab.corpora import opposites, topical, two_grades, wrong

FIRST, SECOND = list("abcdefghij"), list("abcdefghiz")
ROWS = FIRST, SECOND, np.array([0.0, 1, 2, 3, 4, 5, 0, 1, 2, 3])


def test_labels_change_as_the_studies_say():
    """Fails if another share of the labels is wrong, two grades part elsewhere, or unlike pairs are called equal."""
    assert two_grades(ROWS)[2].tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1]
    changed = wrong(ROWS, 20)[2] != ROWS[2]
    assert changed.sum() == 2 and set(wrong(ROWS, 20)[2]) <= set(range(6))
    assert topical(ROWS)[2].tolist() == [5, 5, 2, 3, 4, 5, 0, 1, 2, 3], "the first two alike ones below the middle"
    first, _, labels = opposites((FIRST, SECOND, np.array([0, 1, 4, 4, 2, 3, 1, 0, 0, 0])))
    assert first == ["b", "c", "d", "g"] and labels.tolist() == [0, 1, 1, 0]
    assert ROWS[2].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3], "the rows that were read are not changed"
