"""The pipeline of kexue.fm 8541: the mixture of both teachers, and the table of its models."""

from types import SimpleNamespace

import pytest

from cosent.cli import arguments_of, parse
from lab.benchmarks import roformer_sim
from lab.benchmarks.roformer_sim import CORPORA, LABELLED, roformer_sim_table, rows_of, ten_pairs_table
from lab.claims import facts

TEN = {"pairs": [["甲", "乙"], ["丙", "丁"]], "published": [0.977, 0.624]}


def model(kind: str, seed: int, score: float, ten: list[float], **more) -> dict:
    return {"kind": kind, "seed": seed, "test": dict.fromkeys(CORPORA, score), "ten": ten, "learning_rate": 5e-4} | more


MODELS = [
    model("stage1", 0, 0.4, [0.9, 0.8], distinct=0.75, overlap=0.7),
    model("teacher_sbert", 2, 0.6, [0.4, 0.5]),
    model("teacher_sbert", 1, 0.5, [0.9, 0.1]),
    model("teacher_cosent", 1, 0.7, [0.6, 0.2]),
    model("student_cosent", 1, 0.7, [0.6, 0.2], distinct=0.5, overlap=0.6, perplexity=[5.0, 5.5]),
]
RESULT = TEN | {
    "models": MODELS,
    "teacher": {"steps": 10, "batch": 20, "pool": {"atec": 40, "bq": 30, "lcqmc": 20, "stsb": 10, "nli": 50}},
    "student": {"pairs": 2000},
    "device": "CPU",
    "commit": "abcdef0123456789",
}


def settings(parsed: tuple) -> dict:
    return {key: value for part in parsed for key, value in vars(part).items()}


def test_both_teachers_read_the_same_mixture(monkeypatch):
    """Fails if CoSENT draws other shares of the corpora than the joint Sentence-BERT that it is compared with."""
    lengths = {"atec": 9000, "bq": 8000, "lcqmc": 7000, "stsb": 5231}
    trained = []
    monkeypatch.setattr(roformer_sim, "load_corpus", lambda name: SimpleNamespace(split=lambda _: range(lengths[name])))

    def finished(job, words, output):
        trained.append(settings(parse(words, *arguments_of(job))))

    monkeypatch.setattr(roformer_sim, "finished", finished)
    found = {}
    for loss in ("sbert_joint", "cosent"):
        trained.clear()
        roformer_sim.taught_by_labels("name", loss, "mini", 1, 5e-4, 400)
        found[loss] = trained[0]
    assert found["sbert_joint"]["corpus_weights"] is None
    assert found["cosent"]["corpus_weights"] == [6400, 6400, 6400, 5231, 3 * 6400 + 5231]
    same = ("corpus", "limit_train", "max_steps", "per_device_train_batch_size", "pooling", "dropout", "weight_decay")
    assert [found["cosent"][key] for key in same] == [found["sbert_joint"][key] for key in same]
    assert found["cosent"]["corpus"] == [*LABELLED, "nli"] and found["cosent"]["loss"] == "cosent"


def test_scores_are_listed_by_seed():
    """Fails if a claim pairs the seeds of two models wrongly."""
    rows = {row["name"]: row["values"] for row in rows_of(MODELS)}
    assert rows["teacher_sbert lcqmc"] == [0.5, 0.6] and rows["stage1 pawsx"] == [0.4]
    assert len(rows) == 4 * len(CORPORA)


def test_the_table_shows_ours_next_to_the_published():
    """Fails if a score, a count of wrong orders or a share of the mixture is not that of the result."""
    lines = roformer_sim_table(RESULT).splitlines()
    assert "stage 1 | Sentence-BERT teacher | CoSENT teacher | student of CoSENT |" in lines[0]
    assert lines[2] == "| atec | 25.69 | 40.00 | 55.00 ± 7.07 | 70.00 | 70.00 | 39.27, 51.71 | 37.08, 51.21 |"
    assert lines[5].endswith("| 6.70, 62.84 | 5.80, 56.41 |")
    assert lines[7] == "| ten pairs in the wrong order, of 25 |  | 0 | 0, 1 | 0 | 0 |  |  |"
    # 100 pairs of the four corpora, in the shares 40, 30, 20 and 10
    assert "100 pairs of NLI and as many of the others (about atec 40, bq 30, lcqmc 20, stsb 10)" in lines[-1]
    assert "1 seed; CPU, commit abcdef0123." in lines[-1]


def test_the_ten_pairs_are_means_over_seeds():
    """Fails if a cosine is that of one seed, or a model that does not write has paraphrases."""
    text = ten_pairs_table(RESULT)
    assert "| 甲 / 乙 | 0.977 | 0.900 | 0.650 | 0.600 | 0.600 |" in text
    assert "| distinct paraphrases |  | 75% |  |  | 50% |" in text
    assert "| perplexity on LCQMC, after |  |  |  |  | 5.50 |" in text


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [([1.0, 2.0, 1.5], "agrees"), ([-1.0, -2.0, -1.5], "disagrees"), ([5.0, -5.0, 0.3], "unresolved at this size")],
)
def test_a_student_has_to_be_ahead_on_every_corpus(monkeypatch, gaps, verdict):
    """Fails if the verdict on a student is not that of its seeds."""
    students = [f"student_{loss} {corpus}" for loss in ("sbert", "cosent") for corpus in CORPORA]
    rows = [{"name": name, "values": [0.5 + gap / 100 for gap in gaps]} for name in students]
    rows += [{"name": f"stage1 {corpus}", "values": [0.5]} for corpus in CORPORA]
    monkeypatch.setattr(facts, "kept", lambda name: {"rows": rows})
    figure, found = facts.student_over_start()
    assert found == verdict and f"student of Sentence-BERT {sum(gaps) / 3:+.2f} [" in figure
    rows[0]["values"] = [0.4, 0.4, 0.41] if verdict == "agrees" else [0.6, 0.6, 0.61]
    assert facts.student_over_start()[1] == "unresolved at this size"
