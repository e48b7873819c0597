"""The job that makes pairs: what is in them, what labels them, and what is refused."""

import json

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder

FRUIT = [f"{colour}色的{thing}" for colour in "红黄蓝绿白黑" for thing in ("苹果", "汽车", "衣服", "房子")]
HELD_OUT = "红色的苹果"  # FRUIT[0]
TRAIN = [(FRUIT[i], FRUIT[i + 1], float(i % 4 == 0)) for i in range(0, 24, 2)]


@pytest.fixture
def corpus(make_corpus):
    splits = {"train": TRAIN, "validation": [(f"{HELD_OUT}！", "完全不同", 0.0)], "test": [("别的", "话", 1.0)]}
    return make_corpus(splits, name="fruit")


@pytest.fixture
def mine(corpus, tiny_bi, job, tmp_path, monkeypatch):
    """A function that runs the job and returns the written corpus and its line on stdout."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("cosent.search.mining.PAIRS", 7)  # several blocks of pairs

    def run(*flags, output="made", of=corpus, range_min=1):
        words = ["--corpus", of, "--output", tmp_path / output, "--model", tiny_bi, "--device", "cpu"]
        printed, _ = job("cosent.jobs.mine", *words, "--range_min", range_min, *flags)
        return load_corpus(str(tmp_path / output)), json.loads(printed)

    return run


def rows_of(made) -> dict[frozenset, float]:
    """Label by unordered pair."""
    rows = made.split("train")
    labels = {frozenset((row["sentence1"], row["sentence2"])): row["label"] for row in rows}
    assert len(labels) == len(rows) and all(len(pair) == 2 for pair in labels)
    return labels


LABELLED = {frozenset(pair[:2]): pair[2] for pair in TRAIN}


def test_neighbours_are_negatives_and_own_pairs_keep_their_labels(mine, tmp_path):
    """Fails if a labelled pair gets another label or comes twice, a sentence of a held-out split is in a made pair, or
    --text is ignored."""
    (tmp_path / "lines.txt").write_text("紫色的苹果\n紫色的汽车\n完全不同\n", encoding="utf-8")
    made, said = mine("--random", 10, "--text", tmp_path / "lines.txt")
    labels = rows_of(made)
    assert LABELLED.items() <= labels.items()
    new = labels.keys() - LABELLED.keys()
    assert len(new) == said["pairs"]["neighbours"] + said["pairs"]["random"] > 15 and said["pairs"]["random"] == 10
    words = set().union(*new)
    assert {labels[pair] for pair in new} == {0.0} and not {HELD_OUT, "完全不同"} & words and "紫色的苹果" in words
    assert (made.manifest.name, made.manifest.label_kind, made.manifest.label_max) == ("made", "binary", 1.0)
    assert list(made.splits) == ["train"] and said["train"] == len(labels)
    facts = made.manifest.splits["train"]["mined"]
    assert facts["neighbours_by"]["range_min"] == 1 and len(facts["neighbours_by"]["sha256"]) == 40
    assert facts["corpus"]["name"] == "fruit"


def test_a_teacher_labels_every_pair_with_its_score(mine, tiny_bi, tiny_cross):
    """Fails if a taught label is not the teacher's score of that pair, or own labels survive."""
    for folder, tower, bounds in ((tiny_bi, SentenceEncoder, (-1.0, 1.0)), (tiny_cross, CrossEncoder, None)):
        made, said = mine("--random", 5, "--teacher", folder, output=tower.__name__)
        assert said["pairs"]["own"] == 12 and said["pairs"]["random"] == 5 and made.manifest.label_kind == "graded"
        rows, labels = made.split("train"), made.labels("train")
        expected = tower.from_pretrained(str(folder)).similarity(rows["sentence1"][:], rows["sentence2"][:])
        np.testing.assert_allclose(labels, expected, atol=1e-6)
        limits = made.manifest.label_min, made.manifest.label_max
        assert limits == (bounds or (labels.min(), labels.max())) and np.ptp(labels) > 2e-5
        assert made.manifest.splits["train"]["mined"]["teacher"]["model"] == str(folder)


def test_what_is_refused(mine, make_corpus, tmp_path, tiny_bi):
    """Fails if a user gets fewer pairs than asked for, a corpus that training refuses or one that is overwritten, or
    negatives where nothing is similar or contradiction is meant."""
    for flags, message in (
        ({"range_min": 22}, "--range_min 22 of 22"),
        (["--random", 5000], "--random 5000"),
        (["--random", -1], "--random .* -1"),
    ):
        with pytest.raises(InputError, match=message):
            mine(*flags) if isinstance(flags, list) else mine(**flags)
        assert not (tmp_path / "made").exists()
    mine()
    with pytest.raises(InputError, match="--output .*made exists"):
        mine()
    with pytest.raises(InputError, match="--output .*fruit has the name"):
        mine(output="fruit")
    negatives = make_corpus({"train": [(a, b, 0.0) for a, b, _ in TRAIN]}, name="negatives")
    with pytest.raises(InputError, match="negatives train .*--teacher"):
        mine(of=negatives, output="other")
    taught, _ = mine("--teacher", tiny_bi, of=negatives, output="taught")
    assert len(np.unique(taught.labels("train"))) > 5
    nli = make_corpus({"train": TRAIN}, "nli", 2.0, name="nli")
    with pytest.raises(InputError, match="NLI .*--teacher"):
        mine(of=nli, output="other")
