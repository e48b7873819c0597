"""`cosent similarity`: pairs of the command line and of files, scored as a stream."""

import json

import openpyxl
import pytest

from cosent import load_model
from cosent.cli import parse
from cosent.data.files import PAIR, open_table, table_writer
from cosent.errors import InputError
from cosent.similarity import ARGUMENTS, main, pair_up

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


@pytest.mark.parametrize("ending", [".tsv", ".jsonl", ".parquet", ".xlsx", ".csv.gz"])
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


def test_a_sheet_and_an_encoding_are_named(tiny_model, tmp_path, capsys):
    """Fails if a workbook with notes, text in GB18030 or labels that are words must be converted first."""
    book = openpyxl.Workbook()
    book.active.append(["说明"])
    sheet = book.create_sheet("数据")
    for row in [("句子1", "句子2", "标签"), ("甲", "乙", "同"), ("丙", "丁", "异")]:
        sheet.append(row)
    book.save(tmp_path / "a.xlsx")
    (tmp_path / "a.csv").write_bytes("句子1,句子2,标签\n甲,乙,同\n丙,丁,异\n".encode("gb18030"))
    labels = ("--label_column", "标签", "--label_values", "同=1", "异=0")
    printed = []
    for name, *flags in (("a.xlsx", "--sheet", "数据"), ("a.csv", "--encoding", "gb18030")):
        similarity(tiny_model, "--pairs", tmp_path / name, *flags, *labels)
        printed.append(capsys.readouterr())
    assert printed[0].out == printed[1].out and [row.split()[1] for row in printed[0].out.splitlines()] == ["1", "0"]
    assert "Spearman with 标签" in printed[0].err
    with pytest.raises(InputError, match="--sheet"):
        similarity(tiny_model, "甲", "乙", "--sheet", "数据")


def test_json_for_scripts(tiny_model, questions, capsys):
    """Fails if a script cannot read what is printed, of a file or of two sentences."""
    similarity(tiny_model, "--pairs", questions, "--text_columns", "q1", "q2", "--json")
    of_file = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    similarity(tiny_model, FIRST[2], SECOND[2], "--json")
    (of_words,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(of_file) == 7 and of_file[2].keys() == {"id", "q1", "q2", "score"}
    assert of_words == {"sentence1": FIRST[2], "sentence2": SECOND[2], "score": pytest.approx(of_file[2]["score"])}


def test_known_scores_are_next_to_those_of_the_model(tiny_model, tmp_path, monkeypatch, capsys):
    """Fails if a known score is printed next to another pair, or the order of both is compared the wrong way."""
    monkeypatch.setattr("cosent.similarity.CHUNK", 2)
    scores = load_model(str(tiny_model)).similarity(FIRST[:3], SECOND[:3])
    first, second, third = scores.argsort()
    labels = [""] * 3
    labels[first], labels[second], labels[third] = "1", "5", "0.25"  # ranks 2 3 1: 1 - 6 * (1 + 1 + 4) / (3 * 8)
    with table_writer(tmp_path / "gold.tsv", ("sentence1", "sentence2", "label")) as write:
        columns = zip(FIRST, SECOND, labels, strict=False)
        write([{"sentence1": one, "sentence2": two, "label": label} for one, two, label in columns])
    words = ("--pairs", tmp_path / "gold.tsv", "--label_column", "label")
    similarity(tiny_model, *words)
    out, err = capsys.readouterr()
    found = [printed.split()[:3] for printed in out.splitlines()]
    assert found == [[f"{scores[n]:.4f}", labels[n], FIRST[n]] for n in range(3)]
    assert err.endswith("Spearman with label: -0.5000\n")
    similarity(tiny_model, *words, "--output", tmp_path / "scored.csv")
    assert capsys.readouterr().err.endswith("Spearman with label: -0.5000\n")


def test_a_known_score_that_is_no_number_is_named(tiny_model, tmp_path):
    """Fails if the model is compared with other pairs than the user has labelled."""
    for value in ("", "similar", "nan"):
        (tmp_path / "gold.tsv").write_text(f"sentence1\tsentence2\tlabel\n甲\t乙\t1\n丙\t丁\t{value}\n", "utf-8")
        with pytest.raises(InputError, match=r"pair 2: .* label"):
            similarity(tiny_model, "--pairs", tmp_path / "gold.tsv", "--label_column", "label")


def test_flags_that_cannot_work_are_refused_at_once(tiny_model, questions, tmp_path):
    """Fails if a column of the user is replaced, or an error comes after hours of scoring."""
    output = ("--output", tmp_path / "out.csv")
    with table_writer(tmp_path / "gold.csv", ("sentence1", "sentence2", "score")) as write:
        write([{"sentence1": "甲", "sentence2": "乙", "score": 1}])
    for words, message in (
        (("--pairs", tmp_path / "gold.csv", *output), "gold.csv .* score"),
        (("--pairs", questions, "--text_columns", "q1", "q2", *output, "--json"), "--json .*--output"),
        (("甲", "乙", *output), "--output"),
        (("甲", "乙", "--label_column", "score"), "--label_column"),
        (
            ("--pairs", tmp_path / "gold.csv", "--label_column", "gold"),
            "--label_column gold: .*sentence1, sentence2, score",
        ),
        (("甲", "乙", "--pairs", questions), "--pairs"),
    ):
        with pytest.raises(InputError, match=message):
            similarity(tiny_model, *words)
    assert not (tmp_path / "out.csv").exists()


def test_sentences_come_two_by_two():
    """Fails if the last of three sentences is compared with nothing."""
    assert [tuple(pair.values()) for pair in pair_up(["甲", "乙", "丙", "丁"])] == [("甲", "乙"), ("丙", "丁")]
    with pytest.raises(InputError, match="丙"):
        pair_up(["甲", "乙", "丙"])
