"""What intervals need to know of the test rows of the committed results: lab/results/test_rows.npz.

python -m lab.tables.rows        from the corpora under data/, prepared by `cosent prepare`

By corpus, `groups` is the group of pairs that share a sentence, `overlap` the character overlap of each pair in ten
thousandths, `untrained` the rank of its score by `mini`, and `seen` whether a sentence of it is in the training split.
"""

from functools import cache
from pathlib import Path

import numpy as np

from cosent.comparing.results import Arrays, Study, read_results
from cosent.data.corpus import load_corpus, pair_groups
from cosent.errors import messages_for_users
from cosent.evaluation.similarity import character_overlap
from cosent.models import load_model
from lab import RESULTS

FILE = RESULTS / "test_rows.npz"
CORPORA = ("atec", "bq", "lcqmc", "pawsx", "stsb")


def main() -> None:
    arrays, mini = {}, load_model("mini")
    for name in CORPORA:
        corpus = load_corpus(name)
        rows = corpus.split("test")
        first, second = rows["sentence1"][:], rows["sentence2"][:]
        overlaps = [character_overlap(one, other) for one, other in zip(first, second, strict=True)]
        scores = mini.similarity(first, second)
        if name != "pawsx":  # whose training split could not be had
            read = {sentence for column in ("sentence1", "sentence2") for sentence in corpus.split("train")[column][:]}
            arrays[f"{name}/seen"] = np.array(
                [pair[0] in read or pair[1] in read for pair in zip(first, second, strict=True)]
            )
        arrays[f"{name}/groups"] = pair_groups(rows).astype(np.uint16)
        arrays[f"{name}/untrained"] = np.unique(scores, return_inverse=True)[1].astype(np.uint16)
        arrays[f"{name}/overlap"] = np.round(np.multiply(overlaps, 10_000)).astype(np.uint16)
    np.savez_compressed(FILE, **arrays)


@cache
def read_test_rows() -> Arrays:
    with np.load(FILE) as stored:
        return {name: values.astype(np.float64) for name, values in stored.items()}


def read_study(folder: Path) -> Study:
    """The results of a study, each with the groups of its test rows, where they are known."""
    study, known = read_results(folder), read_test_rows()
    for corpus, named in ((c, named) for run in study.results for c, named in run.scores.items()):
        groups = known.get(f"{corpus}/groups")
        if groups is not None and len(groups) == len(named["labels"]):
            named["groups"] = groups
    return study


if __name__ == "__main__":
    with messages_for_users():
        main()
