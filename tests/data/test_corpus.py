"""A prepared corpus is what its manifest says."""

import shutil

import numpy as np
import pytest

from cosent.data.corpus import load_corpus, random_subset
from cosent.data.pairs import PairDataset
from cosent.errors import InputError


def test_a_subset_is_fixed_and_random(make_corpus, pairs, tokenizer):
    """Fails if --limit_train differs between runs, or takes the first rows of a sorted file."""
    rows = load_corpus(make_corpus({"train": pairs})).split("train")
    some = random_subset(rows, 10, "--limit_train", 1)
    assert some["sentence1"][:] == random_subset(rows, 10, "--limit_train", 1)["sentence1"][:]
    assert some["sentence1"][:] != random_subset(rows, 10, "--limit_train", 2)["sentence1"][:]
    assert len(some) == 10 and len(set(some["sentence1"][:])) > 2
    data = PairDataset(some, tokenizer, 32)
    np.testing.assert_array_equal([row[2] for row in data], some["label"][:])
    assert random_subset(rows, 10**6, "--limit_train", 1) is rows


@pytest.mark.parametrize(
    ("name", "message"), [("lcqmc", "prepare lcqmc"), ("", "no prepared corpus"), ("raw.tsv", "no prepared corpus")]
)
def test_a_missing_corpus_says_how_to_prepare_it(tmp_path, name, message):
    """Fails if a user without data is left with a stack trace, or a raw file is read as if it were prepared."""
    (tmp_path / "raw.tsv").write_text("好\t坏\t0\n", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_corpus(name if name == "lcqmc" else str(tmp_path / name), str(tmp_path))


def test_a_split_that_is_not_there(make_corpus, pairs):
    """Fails if a missing split is not named together with those that exist."""
    with pytest.raises(InputError, match="has no test split, only train"):
        load_corpus(make_corpus({"train": pairs})).split("test")


def test_a_file_that_was_changed_after_it_was_prepared(make_corpus):
    """Fails if rows come in or go out behind the manifest, which run.json names as what was trained on."""
    folder = make_corpus({"train": [("好", "坏", 0.0)] * 4})
    shutil.copy(make_corpus({"train": [("好", "坏", 0.0)] * 3}, name="other") / "train.parquet", folder)
    with pytest.raises(InputError, match="has 3 rows and its manifest says 4"):
        load_corpus(str(folder))
