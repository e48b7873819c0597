"""Checks of the sentences and the label of a row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cosent.data.files import RowError, value_of
from cosent.data.manifest import NLI_CLASSES

NO_GOLD_LABEL = "-"  # SNLI and OCNLI: the annotators found no majority


@dataclass(frozen=True)
class LabelRange:
    """Labels that a corpus may hold: `kind` as in `cosent.data.manifest.LABEL_KINDS`, both ends included.

    `ANY_SCORE` takes any finite float32, and the range of the corpus is then that of its rows. `values` are those of
    `--label_values`: what each label stands for, and no other may be there.
    """

    kind: str
    low: float
    high: float
    values: Mapping[str, str] | None = None

    def value(self, label: object) -> object:
        """What a label stands for: a number, or the name of an NLI class."""
        return value_of(label, self.values) if self.kind == "binary" or self.values else label


LARGEST = 3.4028234e38  # of float32
ANY_SCORE = LabelRange("graded", -LARGEST, LARGEST)


class LabelError(RowError):
    """Error for a label that a corpus of this kind does not hold."""


def check_text(value: object, name: str) -> str:
    """Strips and checks a sentence.

    Raises:
        RowError: not text, or empty.
    """
    if not isinstance(value, str):
        raise RowError(f"text in {name}", f"{value!r}")
    sentence = value.strip()
    if not any(character.isprintable() and not character.isspace() for character in sentence):
        raise RowError(f"a sentence in {name}", "an empty sentence")
    return sentence


def check_label(value: object, labels: LabelRange, name: str = "a label") -> float:
    """Checks a label and converts it to the number that training uses; NLI classes become their rank.

    Args:
        name: what the value is, for the message.

    Raises:
        LabelError: not one of the classes, not a number, NaN, or outside the range.
    """
    stands_for = labels.value(value)
    if labels.values and stands_for is None:
        raise LabelError(f"one of {', '.join(labels.values)} (--label_values)", f"{value!r}")
    if labels.kind == "nli":
        if not isinstance(stands_for, str) or stands_for.strip() not in NLI_CLASSES:
            # 0 is entailment in some corpora and contradiction in others
            raise LabelError(f"an NLI label, one of {', '.join(NLI_CLASSES)} (numbers are ambiguous)", f"{value!r}")
        return float(NLI_CLASSES.index(stands_for.strip()))
    wanted = f"a number from {labels.low:g} to {labels.high:g}"
    if labels.kind == "binary":
        wanted = "0 or 1"
    elif labels.high == ANY_SCORE.high:
        wanted = "a finite number"
    try:
        number = math.nan if isinstance(stands_for, bool) else float(stands_for)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or not labels.low <= number <= labels.high or (labels.kind == "binary" and number % 1):
        raise LabelError(f"{name} that is {wanted}", f"{value!r}")
    return number
