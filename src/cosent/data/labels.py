"""What labels mean: kinds and ranges, and the words and numbers of a file as the numbers that training uses."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cosent.data.formats import RowError
from cosent.errors import InputError

if TYPE_CHECKING:
    import numpy as np

LABEL_KINDS = ("binary", "graded", "nli")
SIMILAR_SHARE = 0.8  # of the range of labels: from here on, sentences are similar
NLI_CLASSES = ("contradiction", "neutral", "entailment")  # the label is the position: entailment ranks highest
LARGEST = 3.4028234e38  # of float32
LABEL_WORDS = {
    **dict.fromkeys(("是", "相似", "相同", "true", "yes"), "1"),
    **dict.fromkeys(("否", "不相似", "不同", "false", "no"), "0"),
}


@dataclass
class Labels:
    """Meaning of the labels of a corpus: kind and range.

    Args:
        name: name of the corpus, e.g. `lcqmc`.
        label_kind: one of `LABEL_KINDS`.
        label_min, label_max: range of the labels, both ends included (binary 0..1, NLI 0..2, STS-B 0..5).
    """

    name: str
    label_kind: str
    label_min: float
    label_max: float

    @property
    def similar_from(self) -> float:
        """The least label of similar sentences: 1 of binary labels, entailment of NLI, 4 of 0..5."""
        return self.label_min + SIMILAR_SHARE * (self.label_max - self.label_min)

    @classmethod
    def of_values(cls, name: str, values: "np.ndarray") -> "Labels":
        """What labels mean by their values: binary if all are 0 or 1, else graded from the least to the greatest."""
        low, high = float(values.min()), float(values.max())
        if set(values.tolist()) <= {0.0, 1.0}:
            return cls(name, "binary", 0.0, 1.0)
        if low == high:
            raise InputError(
                f"All labels of {name} are {low:g}, so that their range is unknown. Give it: labels=Labels({name!r}, "
                "'graded', 0, 5)."
            )
        return cls(name, "graded", low, high)

    def fits(self, values: "np.ndarray") -> bool:
        """Whether all labels are of this kind and range."""
        within = self.label_min < self.label_max and self.label_min <= values.min() <= values.max() <= self.label_max
        is_kind = self.label_kind != "binary" or set(values.tolist()) <= {0.0, 1.0}
        return bool(within) and self.label_kind in LABEL_KINDS and is_kind

    def shares(self, values: "np.ndarray") -> "np.ndarray":
        """Labels scaled to 0..1 in float64."""
        return (values.astype("float64") - self.label_min) / (self.label_max - self.label_min)


@dataclass
class LabelReader:
    """Reads the labels of raw rows.

    Args:
        labels: meaning of the numbers that it returns; a range up to `LARGEST` accepts all.
        values: what labels stand for, see `label_values`; for binary labels added to `LABEL_WORDS`.
        words: counts the labels that stand for another value, with that value.
    """

    labels: Labels
    values: Mapping[str, str] = field(default_factory=dict)
    words: Counter = field(default_factory=Counter)

    def read(self, label: object, name: str = "a label") -> float:
        """The number of a label; NLI classes become their rank."""
        kind, low, high = self.labels.label_kind, self.labels.label_min, self.labels.label_max
        value = value_of(label, {**(LABEL_WORDS if kind == "binary" else {}), **self.values})
        if value is None:
            raise RowError(f"one of {', '.join(self.values)} (--label_values)", f"{label!r}", "Add it to the flag.")
        if value is not label:
            self.words[str(label).strip(), value] += 1
        if kind == "nli":
            if value not in NLI_CLASSES:
                expected = f"an NLI label, one of {', '.join(NLI_CLASSES)} (numbers are ambiguous)"
                raise RowError(expected, f"{label!r}", remedy_of(label, kind))
            return float(NLI_CLASSES.index(value))
        number = None if isinstance(value, bool) else number_of(value, {})
        if number is None or not low <= number <= high or (kind == "binary" and number % 1):
            numbers = "a finite number" if high == LARGEST else f"a number from {low:g} to {high:g}"
            expected = f"{name} that is {'0 or 1' if kind == 'binary' else numbers}"
            raise RowError(expected, f"{label!r}", remedy_of(label, kind))
        return number


def label_values(words: Sequence[str] | None) -> dict[str, str]:
    """The values of `--label_values 否=0 是=1` by their labels."""
    parts = [word.rpartition("=") for word in words or ()]
    if not all(label.strip() and value for label, _, value in parts):
        raise InputError(f"--label_values takes LABEL=VALUE, as in 否=0 是=1, got {' '.join(words or ())}.")
    return {as_written(label): value.strip() for label, _, value in parts}


def as_written(label: object) -> str:
    """A label as text: without spaces around it, in small letters, and 1.0 as 1."""
    text = str(label).strip().lower()
    try:
        return f"{float(text) + 0.0:.15g}"
    except ValueError:
        return text


def value_of(label: object, words: Mapping[str, str]) -> object:
    """The value of a label that is one of `words`, else the label; None for a number if `words` map other numbers."""
    text = as_written(label)
    if text in words:
        return words[text]
    if any(number_of(word, {}) is not None for word in words) and number_of(text, {}) is not None:
        return None
    return label


def number_of(label: object, words: Mapping[str, str] = LABEL_WORDS) -> float | None:
    """A label as a number that float32 holds, see `value_of`; None if it is none."""
    try:
        number = float(value_of(label, words)) + 0.0  # type: ignore[arg-type]  # what it does not take is caught
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) <= LARGEST else None


def remedy_of(label: object, kind: str = "") -> str:
    """What to do about a label that cannot be read."""
    text = str(label).strip()
    if text.endswith(("%", "％")):
        return "Write percentages as numbers without the sign; --label_max 100 is their range."
    if isinstance(label, dict | list | None) or not text:
        return "Write a number or a word as the label."
    if number_of(text, {}) is not None:
        if kind == "nli":
            return "Say what the numbers stand for, e.g. --label_values 0=entailment 1=neutral 2=contradiction."
        return "Correct it, or for grades pass --label_kind graded with their --label_min and --label_max."
    value = "entailment" if kind == "nli" else "1"
    return f"Correct it, or say what the word stands for, e.g. --label_values {text}={value}."
