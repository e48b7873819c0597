"""Labels of rows that people have: numbers, or words that stand for 0 and 1."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from cosent.errors import InputError

logger = logging.getLogger(__name__)
LABEL_WORDS = {"是": "1", "否": "0", "相似": "1", "不相似": "0", "true": "1", "false": "0", "yes": "1", "no": "0"}


def label_values(words: Sequence[str] | None) -> dict[str, str] | None:
    """The values of `--label_values 否=0 是=1` by their labels.

    Raises:
        InputError: a word without `=`.
    """
    if words is None:
        return None
    parts = [word.rpartition("=") for word in words]
    wrong = [word for word, (label, _, value) in zip(words, parts, strict=True) if not label.strip() or not value]
    if wrong:
        raise InputError(f"--label_values takes LABEL=VALUE, as in 否=0 是=1, got {' '.join(wrong)}.")
    return {as_written(label): value.strip() for label, _, value in parts}


def as_written(label: object) -> str:
    """A label as text: without spaces around it, in small letters, and 1.0 as 1."""
    return f"{label:g}" if isinstance(label, float) else str(label).strip().lower()


def value_of(label: object, values: Mapping[str, str] | None) -> object:
    """What a label stands for: a word of `LABEL_WORDS` its number, anything else itself.

    Args:
        values: in place of `LABEL_WORDS`, all labels that there are; another one stands for None.
    """
    return LABEL_WORDS.get(as_written(label), label) if values is None else values.get(as_written(label))


def is_label(text: object) -> bool:
    """Whether a field is a finite number, or a word of `LABEL_WORDS`."""
    try:
        return math.isfinite(float(value_of(text, None)))  # type: ignore[arg-type]  # what it does not take is caught
    except (TypeError, ValueError):
        return False


class LabelColumn:
    """A column of labels, read as numbers; the first word that stands for one is logged."""

    def __init__(self, path: Path, name: str, values: Mapping[str, str] | None = None):
        self.path, self.name, self.values, self.told = path, name, values, False

    def read(self, row: dict, number: int) -> float:
        """The label of a row.

        Args:
            number: of the row, from 1, for the message.

        Raises:
            InputError: it is not a number.
        """
        label = row.get(self.name)
        value = value_of(label, self.values)
        if not is_label(value):
            of_values = f" or one of {', '.join(self.values)} (--label_values)" if self.values else ""
            raise InputError(
                f"{self.path}, pair {number}: expected a number{of_values} in {self.name}, got {label!r}. Correct it, "
                "name another --label_column, or say what it stands for: --label_values 否=0 是=1."
            )
        if value is not label and not self.told:
            self.told = True
            meaning = ", ".join(f"{word} as {number}" for word, number in (self.values or LABEL_WORDS).items())
            logger.info("%s: labels in %s are read by their words: %s.", self.path, self.name, meaning)
        return float(value)  # type: ignore[arg-type]  # it is a label
