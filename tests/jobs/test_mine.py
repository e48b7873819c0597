"""The job that makes pairs: what is in them, what labels them, and what is refused."""

import json

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import DecisionRule
from tests.conftest import CALIBRATION
from tests.support.launching import launch

FRUIT = [f"{colour}色的{thing}" for colour in "红黄蓝绿白黑" for thing in ("苹果", "汽车", "衣服", "房子")]
HELD_OUT = "红色的苹果"  # FRUIT[0]
TRAIN = [(FRUIT[i], FRUIT[i + 1], float(i % 4 == 0)) for i in range(0, 24, 2)]


@pytest.fixture
def corpus(make_corpus):
    splits = {"train": TRAIN, "validation": [(f"{HELD_OUT}！", "完全不同", 0.0)], "test": [("别的", "话", 1.0)]}
    return make_corpus(splits, name="fruit")


@pytest.fixture
def mine(corpus, tiny_bi, job, tmp_path):
    """A function that runs the job and returns the written corpus and its line on stdout."""

    def run(*flags, output="made", model=tiny_bi):
        words = ["--corpus", corpus, "--output", tmp_path / output, "--teacher_cache", tmp_path / "cache"]
        words += ["--model", model, "--range_min", 1, "--range_max", 5, "--validation_pairs", 4, "--device", "cpu"]
        given = {flag for flag in flags if str(flag).startswith("--")}
        kept = [word for i, word in enumerate(words) if words[i - i % 2] not in given]
        printed, _ = job("cosent.jobs.mine", *kept, *flags)
        return load_corpus(str(tmp_path / output)), json.loads(printed)

    return run


def rows_of(made) -> dict[frozenset, float]:
    """Label by unordered pair of all splits."""
    rows = [row for part in made.splits.values() for row in part]
    found = {frozenset((row["sentence1"], row["sentence2"])): row["label"] for row in rows}
    assert len(found) == len(rows) and all(len(pair) == 2 for pair in found)
    return found


LABELLED = {frozenset(pair[:2]): pair[2] for pair in TRAIN}


def test_neighbours_are_negatives_and_own_pairs_keep_their_labels(mine, corpus):
    """Fails if a labelled pair gets another label, comes twice, or a sentence of a held-out split is in a made pair."""
    made, said = mine("--random", 10)
    found = rows_of(made)
    assert LABELLED.items() <= found.items()
    new = found.keys() - LABELLED.keys()
    assert len(new) == said["pairs"]["neighbours"] + said["pairs"]["random"] > 15 and said["pairs"]["random"] == 10
    assert {found[pair] for pair in new} == {0.0} and not any(HELD_OUT in pair for pair in new)
    assert (made.manifest.name, made.manifest.label_kind, made.manifest.label_max) == ("made", "binary", 1.0)
    assert len(made.splits["validation"]) == said["validation"] == 4 and "test" in made.manifest.absent_splits
    facts = made.manifest.splits["train"]
    assert facts["left_out"]["sentence of a held-out split"] == 1
    assert facts["mined"]["neighbours_by"]["range_max"] == 5 and len(facts["mined"]["neighbours_by"]["sha256"]) == 40
    assert facts["mined"]["corpus"]["name"] == "fruit"


def test_one_teacher_labels_every_pair_with_its_score(mine, tiny_bi, tiny_cross):
    """Fails if a taught label is not the teacher's score of that pair, or own labels survive."""
    encoder, cross = SentenceEncoder.from_pretrained(str(tiny_bi)), CrossEncoder.from_pretrained(str(tiny_cross))
    made, said = mine("--random", 5, "--teacher", tiny_bi, output="by_bi")
    assert said["pairs"]["own"] == 12 and (made.manifest.label_min, made.manifest.label_max) == (-1.0, 1.0)
    rows = made.split("train")
    expected = encoder.similarity(rows["sentence1"][:], rows["sentence2"][:])
    np.testing.assert_allclose(made.labels("train"), expected, atol=1e-6)
    made, said = mine("--neighbours", 0, "--own", 6, "--random", 5, "--teacher", tiny_cross, output="by_cross")
    assert said["pairs"] == {"own": 6, "neighbours": 0, "random": 5} and made.manifest.label_kind == "graded"
    rows, labels = made.split("train"), made.labels("train")
    np.testing.assert_allclose(labels, cross.similarity(rows["sentence1"][:], rows["sentence2"][:]), atol=1e-5)
    assert made.manifest.label_min <= labels.min() and labels.max() <= made.manifest.label_max


def test_several_teachers(mine, tiny_bi, tiny_cross, tiny_model, tmp_path):
    """Fails if two bi-encoders are not averaged, or a cross-encoder's scale outweighs a bi-encoder's."""
    other = SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls")
    other.save_pretrained(tmp_path / "other")
    one = SentenceEncoder.from_pretrained(str(tiny_bi))
    made, _ = mine("--teacher", tiny_bi, tmp_path / "other", output="two")
    rows = made.split("train")
    columns = rows["sentence1"][:], rows["sentence2"][:]
    mean = (one.similarity(*columns) + other.similarity(*columns)) / 2
    np.testing.assert_allclose(made.labels("train"), mean, atol=1e-6)
    made, _ = mine("--teacher", tiny_bi, tiny_cross, output="mixed")
    found = np.array(list(rows_of(made).values()))
    assert found.min() >= 0 and found.max() <= 1 and abs(found.mean() - 0.5) < 1e-6
    teachers = made.manifest.splits["train"]["mined"]["teachers"]
    assert [teacher["model"] for teacher in teachers] == [str(tiny_bi), str(tiny_cross)]


def rules_of(**thresholds):
    return lambda model: {name: DecisionRule(name, value, CALIBRATION) for name, value in thresholds.items()}


def test_a_cross_encoder_drops_what_it_finds_similar(mine, tiny_cross, monkeypatch):
    """Fails if likely false negatives stay, or the corpus' own pairs are dropped with them."""
    without, _ = mine("--random", 20, output="without")
    new = [pair for pair in rows_of(without) if pair not in LABELLED]
    cross = CrossEncoder.from_pretrained(str(tiny_cross))
    pairs = [(row["sentence1"], row["sentence2"]) for part in without.splits.values() for row in part]
    columns = zip(*(pair for pair in pairs if frozenset(pair) in new), strict=True)
    scores = cross.similarity(*map(list, columns))
    threshold = float(np.median(scores)) + 1e-6
    with pytest.raises(InputError, match="--cross: .*no decision rule"):
        mine("--random", 20, "--cross", tiny_cross, output="unknown")
    monkeypatch.setattr("cosent.models.decision.decision_rules", rules_of(fruit=threshold, lcqmc=9.0))
    made, said = mine("--random", 20, "--cross", tiny_cross, output="with")
    kept = rows_of(made)
    assert kept.keys() - LABELLED.keys() < set(new) and LABELLED.items() <= kept.items()
    assert said["left_out"]["pair that --cross finds similar"] == (scores >= threshold).sum() > 5


def test_lines_of_text_join_the_pool(mine, tmp_path):
    """Fails if --text is ignored, or a line that a held-out split has gets into a pair."""
    file = tmp_path / "lines.txt"
    file.write_text("紫色的苹果\n紫色的汽车\n完全不同\n", encoding="utf-8")
    made, said = mine("--text", file)
    words = set().union(*rows_of(made))
    assert {"紫色的苹果", "紫色的汽车"} <= words and "完全不同" not in words
    assert said["left_out"]["sentence of a held-out split"] == 2


def test_what_cannot_be_made_is_refused(mine, tmp_path):
    """Fails if a user gets fewer pairs than asked for without a word, or a corpus that training refuses."""
    for flags, message in (
        (["--range_max", 500], "--range_max 500: .* 22"),
        (["--random", 5000], "--random 5000"),
        (["--validation_pairs", 500], "--validation_pairs 500 leaves 0"),
        (["--own", 0], "label 0.* --own"),
        (["--random", -1], "--random .* -1"),
    ):
        with pytest.raises(InputError, match=message):
            mine(*flags)
        assert not (tmp_path / "made").exists()


def test_outputs_and_corpora_that_do_not_serve_are_refused(mine, make_corpus, tmp_path, tiny_bi):
    """Fails if a corpus is overwritten, or negatives are made where nothing is similar or contradiction is meant."""
    mine()
    with pytest.raises(InputError, match="--output .*made exists"):
        mine()
    with pytest.raises(InputError, match="--output .*fruit has the name"):
        mine(output="fruit")
    negatives = make_corpus({"train": [(a, b, 0.0) for a, b, _ in TRAIN]}, name="negatives")
    with pytest.raises(InputError, match="negatives train .*--teacher"):
        mine("--corpus", negatives, output="other")
    taught, _ = mine("--corpus", negatives, "--teacher", tiny_bi, output="taught")
    assert len(np.unique(taught.labels("train"))) > 5
    nli = make_corpus({"train": TRAIN}, "nli", 2.0, name="nli")
    with pytest.raises(InputError, match="NLI .*--teacher"):
        mine("--corpus", nli, output="other")


def test_training_reads_what_was_made(mine, corpus, tiny_cross, train):
    """Fails if a made corpus is not an ordinary one for training, next to the corpus that it was made of."""
    mine("--random", 10, "--teacher", tiny_cross, output="taught")
    recipe = ("--config", "cross_encoder/cosent_mini", "--scale", "5", "--num_train_epochs", "1")
    folder = train((corpus.parents[1] / "taught", corpus), *recipe, "--per_device_train_batch_size", "8")
    record = json.loads((folder / "run.json").read_text())
    assert record["after"].keys() == {"taught", "fruit"} and record["recipe"]["scale"] == 5.0
    assert np.isfinite(record["after"]["taught"]["validation"]["pearson"])


@pytest.mark.distributed
def test_two_processes_make_the_corpus_of_one(mine, corpus, tiny_bi, tiny_cross, tmp_path):
    """Fails if processes that were launched together make other pairs, or one stops at the folder of the other."""
    flags = ["--random", "5", "--teacher", str(tiny_cross)]
    alone, _ = mine(*flags)
    words = ["--corpus", corpus, "--output", tmp_path / "two", "--model", tiny_bi]
    words += ["--teacher_cache", tmp_path / "other"]
    words += ["--range_min", 1, "--range_max", 5, "--validation_pairs", 4, *flags]
    (said,) = launch("ddp", ["-m", "cosent", "mine", *map(str, words)], ACCELERATE_USE_CPU="true")
    assert said.count('"pairs"') == 1, "both processes wrote it"
    made = load_corpus(str(tmp_path / "two"))
    both = [{name: rows[:] for name, rows in one.splits.items()} for one in (made, alone)]
    assert both[0] == both[1]


OWN = [f"{city}的快递{days}天能到吗" for city in ("北京", "上海", "广州", "成都") for days in (2, 3, 5, 7)] + [
    "我可以提前还款吗",
    "今天能退款吗",
    "如何打开自动更新",
    "所有商品都包邮吗",
    "我最喜欢红色的外套",
    "周一的会议改到下午",
    "从北京到上海怎么走",
    "这款手机支持快充吗",
    "开通会员要花多少钱",
    "客服什么时候上班",
]
