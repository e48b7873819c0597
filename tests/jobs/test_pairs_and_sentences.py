"""`cosent similarity` of a file, and `cosent generate`."""

import json

import pytest

from cosent import load_model
from cosent.data.files import PAIR, open_table
from cosent.data.writers import table_writer
from cosent.errors import InputError
from cosent.jobs.generate import repeats
from cosent.models.student import Student

FIRST = [f"第{number}个问题" for number in range(7)]
SECOND = [f"怎么还款{number}" for number in range(7)]


@pytest.mark.parametrize("ending", [".jsonl", ".xlsx"])
def test_pairs_of_a_file_get_a_column_of_scores(tiny_model, tmp_path, monkeypatch, job, ending):
    """Fails if a score lands at another pair, where chunks meet or in some format, or a column of the user is lost."""
    monkeypatch.setattr("cosent.jobs.similarity.CHUNK", 3)
    questions, output = tmp_path / "pairs.csv", tmp_path / f"scored{ending}"
    with table_writer(questions, ("id", "q1", "q2")) as write:
        write([{"id": number, "q1": FIRST[number], "q2": SECOND[number]} for number in range(7)])
    words = ("--pairs", questions, "--text_columns", "q1", "q2", "--output", output)
    printed, said = job("cosent.jobs.similarity", "--model", tiny_model, *words)
    assert json.loads(printed)["pairs"] == 7 and "7pair [" in said, "progress is counted in chunks"
    rows = list(open_table(output, ["q1", "q2"], PAIR, "--text_columns").rows())
    assert [(row["id"], row["q1"], row["q2"]) for row in rows] == [(str(n), FIRST[n], SECOND[n]) for n in range(7)]
    expected = load_model(str(tiny_model)).similarity(FIRST, SECOND)
    assert [float(row["score"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert len(set(expected.round(4))) > 3, "scores are alike: nothing was compared"


def test_a_verdict_of_the_user_is_not_replaced(tiny_model, tmp_path, job):
    """Fails if a column that only later lines have is overwritten by the model's."""
    pair, file = {"sentence1": "怎么还款", "sentence2": "如何还款"}, tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (pair, pair | {"verdict": "no"})), encoding="utf-8")
    with pytest.raises(InputError, match="has a column verdict"):
        job("cosent.jobs.similarity", "--model", tiny_model, "--pairs", file, "--output", tmp_path / "scored.jsonl")
    assert not (tmp_path / "scored.jsonl").exists()


@pytest.mark.parametrize(
    ("sentence", "source", "repeated"),
    [
        ("怎么还款还款", "怎么还款", True),
        ("何还款款呢", "怎么还款", True),
        ("今天天气怎样", "今天天气怎么样", False),
        ("今天天气气怎样", "今天天气怎么样", True),
        ("如何还款", "怎么还款", False),
    ],
)
def test_repeated_characters(sentence, source, repeated):
    """Fails if a stuttering sentence is a paraphrase, or one that stutters no more than its source is not."""
    assert repeats(sentence, source) == repeated


def test_sentences_in_the_order_of_similar(tiny_student, job, monkeypatch):
    """Fails if a sentence stands under another source or with another score, or a source without any is left out."""
    samples = [["今天下雨", "如何还款", "还款还款", "还款怎么操作"], []]
    monkeypatch.setattr(Student, "similar_sentences", lambda *_, **__: [[(t, 0.0) for t in of] for of in samples])
    printed, _ = job("cosent.jobs.generate", "--model", tiny_student, "怎么还款", "我", "--top", "2")
    ranker = load_model("similar")
    first, second = (f"{ranker.similarity('怎么还款', text):7.4f}  {text}" for text in ("如何还款", "还款怎么操作"))
    best = sorted((first, second), reverse=True)
    assert printed.splitlines()[1:-1] == ["怎么还款", *best] and printed.splitlines()[-1].startswith("我: no sentence")
