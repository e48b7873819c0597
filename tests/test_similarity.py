"""`cosent similarity`: pairs of the command line and of files, scored as a stream."""

import json

import pytest

from cosent import load_model
from cosent.data.files import PAIR, open_table, table_writer

FIRST = [f"第{number}个问题" for number in range(7)]
SECOND = [f"怎么还款{number}" for number in range(7)]


@pytest.mark.parametrize("ending", [".jsonl", ".xlsx"])
def test_pairs_of_a_file_get_a_column_of_scores(tiny_model, tmp_path, monkeypatch, job, ending):
    """Fails if a score lands at another pair, where chunks meet or in some format, or a column of the user is lost."""
    monkeypatch.setattr("cosent.similarity.CHUNK", 3)
    questions, output = tmp_path / "pairs.csv", tmp_path / f"scored{ending}"
    with table_writer(questions, ("id", "q1", "q2")) as write:
        write([{"id": number, "q1": FIRST[number], "q2": SECOND[number]} for number in range(7)])
    words = ("--pairs", questions, "--text_columns", "q1", "q2", "--output", output)
    assert json.loads(job("cosent.similarity", "--model", tiny_model, *words)[0])["pairs"] == 7
    rows = list(open_table(output, ["q1", "q2"], PAIR, "--text_columns").rows())
    assert [(row["id"], row["q1"], row["q2"]) for row in rows] == [(str(n), FIRST[n], SECOND[n]) for n in range(7)]
    expected = load_model(str(tiny_model)).similarity(FIRST, SECOND)
    assert [float(row["score"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert len(set(expected.round(4))) > 3, "scores are alike: nothing was compared"
