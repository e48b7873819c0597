"""Make the corpora of lab/studies.yaml that are other corpora with other labels, from what `cosent prepare` has made.

python -m lab.corpora stsb_two stsb_wrong        data/stsb_two and data/stsb_wrong, from data/stsb
python -m lab.corpora stsb_lines > lines.txt     the training sentences of STS-B, for `few_labels`
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.evaluation.similarity import character_overlap

Rows = tuple[list[str], list[str], np.ndarray]  # first sentences, second sentences, labels
GRADED = ("--label_kind", "graded", "--label_min", "0", "--label_max", "5", "--on_conflict", "keep")
BINARY = ("--label_kind", "binary", "--on_conflict", "keep")


def two_grades(rows: Rows) -> Rows:
    """Six grades split in two, as a head of two classes reads them."""
    return *rows[:2], (rows[2] > 2.5).astype(int)


def wrong(rows: Rows, percent: int) -> Rows:
    """The grades of a share of the pairs replaced by others, drawn by seed 1."""
    labels, draw = rows[2].copy(), np.random.default_rng(1)
    places = draw.permutation(len(labels))[: len(labels) * percent // 100]
    labels[places] = (labels[places] + draw.integers(1, 6, len(places))) % 6
    return *rows[:2], labels


def topical(rows: Rows) -> Rows:
    """A fifth of the pairs called equal: those below the middle grade that share the most characters."""
    first, second, labels = rows[0], rows[1], rows[2].copy()
    alike = [character_overlap(a, b) if c < 2.5 else -1.0 for a, b, c in zip(first, second, labels, strict=True)]
    labels[np.argsort(-np.array(alike), kind="stable")[: len(labels) // 5]] = 5
    return first, second, labels


def opposites(rows: Rows) -> Rows:
    """Of the demo corpus, 4,000 pairs that say the same (1) or the opposite (0)."""
    places = np.flatnonzero(np.isin(rows[2], (1, 4)))[:4000]
    first, second = ([side[place] for place in places] for side in rows[:2])
    return first, second, (rows[2][places] == 4).astype(int)


# By name: the corpus whose training split it is made of, how, the split that it becomes, and flags of `prepare`.
CORPORA: dict[str, tuple[str, Callable[[Rows], Rows], str, tuple[str, ...]]] = {
    "stsb_two": ("stsb", two_grades, "train", BINARY),
    "stsb_wrong": ("stsb", lambda rows: wrong(rows, 20), "train", GRADED),
    **{f"stsb_wrong_{p}": ("stsb", lambda rows, p=p: wrong(rows, p), "train", GRADED) for p in (10, 20, 40)},
    "stsb_topical_20": ("stsb", topical, "train", GRADED),
    "negation": ("demo", opposites, "test", BINARY[:2]),
}


def make(name: str, data_dir: str) -> None:
    """Prepares a corpus of the table in the data folder."""
    source, change, split, flags = CORPORA[name]
    first, second, labels = change(training_rows(source, data_dir))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{split}.tsv")
        lines = (f"{a}\t{b}\t{c:g}\n" for a, b, c in zip(first, second, labels, strict=True))
        file.write_text("".join(lines), encoding="utf-8")
        words = [name, "--source", folder, "--output", str(Path(data_dir, name)), *flags]
        subprocess.run([sys.executable, "-m", "cosent", "prepare", *words], check=True)


def training_rows(corpus: str, data_dir: str) -> Rows:
    rows = load_corpus(corpus, data_dir).split("train")
    return rows["sentence1"][:], rows["sentence2"][:], np.array(rows["label"][:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*CORPORA, "stsb_lines"])
    parser.add_argument("--data_dir", default="data")
    args = parser.parse_args()
    for name in args.names:
        if name == "stsb_lines":
            first, second, _ = training_rows("stsb", args.data_dir)
            sys.stdout.writelines(f"{sentence}\n" for sentence in sorted({*first, *second}))
        else:
            make(name, args.data_dir)


if __name__ == "__main__":
    with messages_for_users():
        main()
