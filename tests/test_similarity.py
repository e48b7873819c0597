"""`cosent similarity`: pairs of the command line and of files, scored as a stream."""

import json

import pytest

from cosent import load_model
from cosent.cli import parse
from cosent.data.files import PAIR, open_table, table_writer
from cosent.similarity import ARGUMENTS, main

FIRST = [f"第{number}个问题" for number in range(7)]
SECOND = [f"怎么还款{number}" for number in range(7)]


def similarity(model, *words):
    main(*parse([*map(str, words), "--model", str(model), "--device", "cpu"], *ARGUMENTS))


@pytest.fixture
def questions(tmp_path):
    with table_writer(tmp_path / "pairs.csv", ("id", "q1", "q2")) as write:
        write(
            [{"id": number, "q1": one, "q2": two} for number, (one, two) in enumerate(zip(FIRST, SECOND, strict=True))]
        )
    return tmp_path / "pairs.csv"


@pytest.mark.parametrize("ending", [".jsonl", ".xlsx"])
def test_pairs_of_a_file_get_a_column_of_scores(tiny_model, questions, tmp_path, monkeypatch, capsys, ending):
    """Fails if a score lands at another pair, where chunks meet or in some format, or a column of the user is lost."""
    monkeypatch.setattr("cosent.similarity.CHUNK", 3)
    output = tmp_path / f"scored{ending}"
    similarity(tiny_model, "--pairs", questions, "--text_columns", "q1", "q2", "--output", output)
    assert json.loads(capsys.readouterr().out)["pairs"] == 7
    rows = list(open_table(output, ["q1", "q2"], PAIR, "--text_columns").rows())
    assert [(row["id"], row["q1"], row["q2"]) for row in rows] == [(str(n), FIRST[n], SECOND[n]) for n in range(7)]
    expected = load_model(str(tiny_model)).similarity(FIRST, SECOND)
    assert [float(row["score"]) for row in rows] == pytest.approx(expected, abs=2e-6)
    assert len(set(expected.round(4))) > 3, "scores are alike: nothing was compared"
