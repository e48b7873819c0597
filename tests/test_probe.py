"""The job that probes a model: its numbers, its page, what it writes to train on, and what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.evaluation.minimal_pairs import PHENOMENA, Item
from cosent.evaluation.similarity import character_overlap, hubness, spectrum
from cosent.models.bi_encoder import SentenceEncoder
from cosent.probe import ProbeArguments, describe, differences, overlap, scores_of, worst_pairs

OWN = [f"{city}的快递{days}天能到吗" for city in ("北京", "上海", "广州", "成都") for days in (2, 3, 5, 7)] + [
    "我可以提前还款吗", "今天能退款吗", "如何打开自动更新", "所有商品都包邮吗", "我最喜欢红色的外套",
    "周一的会议改到下午", "从北京到上海怎么走", "这款手机支持快充吗", "开通会员要花多少钱", "客服什么时候上班",
]  # fmt: skip
ITEMS = [
    Item("number", "a", "满100元", "满100元。", "满200元"),
    Item("number", "b", "满100元包邮", "凑够一百块免运费", "满300元包邮"),
    Item("negation", "c", "能退", "可以退", "不能退"),
]


@pytest.fixture
def own(tmp_path):
    file = tmp_path / "own.txt"
    file.write_text("\n".join(OWN) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def probe(job):
    """A function that runs the job and returns its stdout."""
    return lambda *words: job("cosent.probe", *words, "--device", "cpu")[0]


def test_accuracy_of_a_scorer_by_hand():
    """Fails if accuracy is not the share of items whose rewording scores higher, ties being failures."""
    same, different = scores_of(lambda *sides: list(map(character_overlap, *sides)), ITEMS, "hand")
    # 满100元 and 满100元。 share 5 of 5 and 6 characters, 4 of 4 and 5 bigrams; 满200元 shares 4 and 2.
    assert same[0] == 2 * 9 / 20 and different[0] == 2 * 6 / 18
    assert (same > different).tolist() == [True, False, False]
    assert overlap(ITEMS) == {"number": 0.5, "negation": 0.0}
    model = SimpleNamespace()
    found = describe("hand", ProbeArguments(model=["hand"]), model, ITEMS, same, different)["phenomena"]
    assert found["number"]["accuracy"] == 0.5 and (found["number"]["items"], found["number"]["templates"]) == (2, 2)
    (failure,) = found["number"]["failures"]
    assert failure["anchor"] == "满100元包邮" and failure["score_same"] == same[1] < failure["score_different"]
    tied = describe("hand", ProbeArguments(model=["hand"]), model, ITEMS, same, same)["phenomena"]
    assert tied["number"]["accuracy"] == 0 and len(tied["negation"]["failures"]) == 1
    gaps = differences(ITEMS, [(same, different), (different + 1, different)])
    assert gaps["number"]["difference"] == 0.5 and gaps["negation"]["difference"] == 1.0


def test_figures_by_hand():
    """Fails if a pair whose score has the rank of its label is shown before one that has not, one vector that is near
    all others is no hub, or equal directions have a wide spectrum."""
    scores, labels = np.array([0.1, 0.9, 0.5, 0.4]), np.array([1.0, 0.0, 1.0, 0.0])
    found = worst_pairs(list("abcd"), list("efgh"), labels, scores)
    assert [pair["sentence1"] for pair in found] == ["a", "b", "c", "d"]
    assert [pair["gap"] for pair in found] == [-0.625, 0.625, -0.125, 0.125]
    circle = np.array([[np.cos(a), np.sin(a)] for a in np.linspace(0, 2 * np.pi, 12, endpoint=False)])
    assert hubness(circle, k=2) == 0
    star = np.vstack([np.ones((1, 24)) / 24**0.5, np.eye(24)])
    counts = np.array([24, *[0] * 24])  # the centre is the nearest of all others; its own nearest is any
    assert hubness(star, k=1) > 3 and counts[0] == 24
    assert spectrum(np.array([[1.0, 0], [1, 0], [0, 1]])) == pytest.approx([2 / 3, 1])


def test_json_of_two_models(probe, tiny_bi, tiny_cross, made_up):
    """Fails if a program cannot read all that the tables show, or a cross-encoder cannot be probed."""
    words = ["--items", 12, "--model", tiny_bi, tiny_cross, "--json", "--corpus", made_up]
    words += ["--phenomenon", "typo", "negation"]
    result = json.loads(probe(*words))
    assert list(result) == ["sentences", "corpus", "seed", "models", "overlap", "differences"]
    assert list(result["overlap"]) == list(result["differences"]) == ["negation", "typo"]
    first, second = result["models"]
    assert (first["name"], first["score"], second["name"], second["score"]) == ("bi", "cosine", "cross", "score")
    for model in (first, second):
        for found in model["phenomena"].values():
            low, high = found["interval"]
            assert found["items"] == 12 and 0 <= low <= found["accuracy"] <= high <= 1
            assert found["similar_same"] is None and len(found["failures"]) <= 10
        assert len(model["worst"]) == 32
        gaps = [abs(pair["gap"]) for pair in model["worst"]]
        assert gaps == sorted(gaps, reverse=True)
    assert second["geometry"] is None and first["geometry"]["sentences"] == 8
    assert first["geometry"]["width"] == 32 and first["geometry"]["alignment"] > 0
    for name, gap in result["differences"].items():
        accuracies = [model["phenomena"][name]["accuracy"] for model in (first, second)]
        assert gap["difference"] == pytest.approx(accuracies[1] - accuracies[0])


def test_text_and_page(probe, tiny_bi, tmp_path):
    """Fails if the table lacks a phenomenon, or the page a section, a figure or the sentences that failed."""
    page = tmp_path / "probe.html"
    text = probe("--items", 12, "--model", tiny_bi, "--output", page).splitlines()
    assert [line.split()[0] for line in text[2 : 2 + len(PHENOMENA)]] == list(PHENOMENA)
    assert any(line.startswith("hubness") for line in text)
    html = page.read_text(encoding="utf-8")
    for title in ("Order by phenomenon", "Scores", "Failures", "Vectors"):
        assert f">{title}</h2>" in html
    assert html.count("data:image/svg+xml") == 2 and "<script" not in html and "nan" not in html
    with pytest.raises(InputError, match=r"probe\.html exists.*--overwrite"):
        probe("--model", tiny_bi, "--output", page)
    probe("--model", tiny_bi, "--output", page, "--overwrite", "--phenomenon", "unit")


def test_the_fix_is_a_corpus_to_train_on(probe, tiny_bi, own, train, tmp_path):
    """Fails if what --fix writes has wrong labels, a sentence in both splits, or cannot be trained on."""
    probe("--model", tiny_bi, "--text", own, "--fix", tmp_path / "own_fix", "--phenomenon", "number")
    corpus = load_corpus(str(tmp_path / "own_fix"))
    manifest = corpus.manifest
    assert (manifest.label_kind, manifest.label_min, manifest.label_max) == ("graded", 0, 2)
    assert set(corpus.splits) == {"train", "validation"} and manifest.absent_splits == ["test"]
    assert manifest.splits["train"]["made"]["labels"] == {"reworded": 2, "changed": 1, "random": 0}
    firsts = [set(rows["sentence1"]) for rows in corpus.splits.values()]
    assert not firsts[0] & firsts[1] and firsts[0] | firsts[1] <= set(OWN)
    assert set(corpus.labels("train")) == set(corpus.labels("validation")) == {0.0, 1.0, 2.0}
    run = train(tmp_path / "own_fix", "--max_steps", "1")
    assert SentenceEncoder.from_pretrained(str(run)).similarity("怎么还款", "如何还款") <= 1
    with pytest.raises(InputError, match=r"--fix .*own_fix exists"):
        probe("--model", tiny_bi, "--text", own, "--fix", tmp_path / "own_fix")


def test_a_model_that_cannot_score(probe, tiny_bi, tmp_path):
    """Fails if NaN is reported as an accuracy of 0, or a folder without a model ends in a traceback."""
    model = SentenceEncoder.from_pretrained(str(tiny_bi))
    next(model.parameters()).data.fill_(float("nan"))
    model.save_pretrained(tmp_path / "broken")
    with pytest.raises(InputError, match="nan"):
        probe("--model", tmp_path / "broken", "--phenomenon", "unit")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        probe("--model", tmp_path / "empty", "--phenomenon", "unit")
