"""Checks of the sentences and the label of a row."""

import math
from dataclasses import dataclass

from cosent.schema import NLI_CLASSES
from cosent.tables.records import RowError, not_utf8

NO_GOLD_LABEL = "-"  # SNLI and OCNLI: the annotators found no majority


@dataclass(frozen=True)
class LabelRange:
    """Labels that a corpus may hold: `kind` as in `cosent.schema.LABEL_KINDS`, both ends included.

    `ANY_SCORE` takes any finite float32, and the range of the corpus is then that of its rows.
    """

    kind: str
    low: float
    high: float


LARGEST = 3.4028234e38  # of float32
ANY_SCORE = LabelRange("graded", -LARGEST, LARGEST)


def check_text(value: object, name: str) -> str:
    """Strips and checks a sentence.

    Raises:
        RowError: not text, empty, or not UTF-8.
    """
    if not isinstance(value, str):
        raise RowError(f"text in {name}", f"{value!r}")
    if problem := not_utf8(value):  # a lone surrogate can also come out of a JSON escape
        raise problem
    sentence = value.strip()
    if not any(character.isprintable() and not character.isspace() for character in sentence):
        raise RowError(f"a sentence in {name}", "an empty sentence")
    return sentence


def check_label(value: object, labels: LabelRange, name: str = "a label") -> float:
    """Checks a label and converts it to the number that training uses; NLI classes become their rank.

    Args:
        name: what the value is, for the message.

    Raises:
        RowError: not one of the classes, not a number, NaN, or outside the range.
    """
    if labels.kind == "nli":
        if not isinstance(value, str) or value.strip() not in NLI_CLASSES:
            # 0 is entailment in some corpora and contradiction in others
            raise RowError(f"an NLI label, one of {', '.join(NLI_CLASSES)} (numbers are ambiguous)", f"{value!r}")
        return float(NLI_CLASSES.index(value.strip()))
    wanted = f"a number from {labels.low:g} to {labels.high:g}"
    if labels.kind == "binary":
        wanted = "0 or 1"
    elif labels == ANY_SCORE:
        wanted = "a finite number"
    try:
        number = math.nan if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or not labels.low <= number <= labels.high or (labels.kind == "binary" and number % 1):
        raise RowError(f"{name} that is {wanted}", f"{value!r}")
    return number
