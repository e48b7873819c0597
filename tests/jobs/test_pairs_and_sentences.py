"""`cosent similarity` and `cosent generate`: files of users in, files with scores and sentences out."""

import json

import pytest

from cosent import load_model
from cosent.data.files import PAIR, SENTENCE, open_table
from cosent.data.writers import table_writer
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


def test_sentences_of_a_sheet_are_written_to_a_sheet(tiny_student, job, tmp_path, monkeypatch):
    """Fails if a user's xlsx is not read by the name of its column, or what is written is not what was generated, in
    the order of `similar`."""
    with table_writer(tmp_path / "in.xlsx", ("id", "question")) as write:
        write([{"id": 1, "question": "怎么还款"}, {"id": 2, "question": "我"}])
    words = ["--model", str(tiny_student), "--text", str(tmp_path / "in.xlsx"), "--text_column", "question"]
    words += ["--max_length", "6", "--num", "3"]
    output = tmp_path / "out.xlsx"
    written = [["今天下雨", "如何还款", "还款怎么操作"], []]  # random weights end no sentence
    monkeypatch.setattr(Student, "similar_sentences", lambda *_, **__: [[(t, 0.0) for t in texts] for texts in written])
    printed = json.loads(job("cosent.jobs.generate", *words, "--output", output)[0])
    ranker = load_model("similar")
    cosines = {sentence: ranker.similarity("怎么还款", sentence) for sentence in written[0]}
    expected = [("怎么还款", best) for best in sorted(cosines, key=cosines.__getitem__, reverse=True)] + [("我", None)]
    rows = list(open_table(output, ["text"], SENTENCE, "--text_column").rows())
    assert [(row["text"], row["similar"]) for row in rows] == expected and expected[-2][1] == "今天下雨"
    assert rows[0]["score"] == pytest.approx(ranker.similarity(rows[0]["text"], rows[0]["similar"]), abs=1e-6)
    assert printed["texts"] == 2 and printed["sentences"] == sum(row["similar"] is not None for row in rows)
