"""`cosent evaluate --pairs`: labelled files that nobody prepared."""

import json
import shutil

import pytest

from cosent.cli import parse
from cosent.data.files import table_writer
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS, main
from cosent.run import Environment, RunRecord


@pytest.fixture
def evaluate(tiny_model, capsys):
    """Returns a function that runs the job and gives back the JSON of stdout, and stderr."""

    def run(*flags, model=tiny_model):
        main(*parse(["--model", str(model), *map(str, flags)], *ARGUMENTS))
        shown = capsys.readouterr()
        return json.loads(shown.out), shown.err

    return run


@pytest.fixture
def labelled(tmp_path, pairs):
    """Returns a function that writes the pairs as a file of that ending, with an id in front."""

    def write(ending, label=lambda value: value, header=("id", "q1", "q2", "same")):
        path = tmp_path / f"mine{ending}"
        rows = [dict(zip(header, (number, a, b, label(y)), strict=True)) for number, (a, b, y) in enumerate(pairs)]
        with table_writer(path, header) as append:
            append(rows)
        return path

    return write


COLUMNS = ("--text_columns", "q1", "q2", "--label_column", "same")


@pytest.mark.parametrize("ending", [".tsv", ".csv.gz", ".jsonl", ".parquet", ".xlsx"])
def test_a_file_counts_as_the_corpus_it_would_be(evaluate, labelled, make_corpus, pairs, ending):
    """Fails if a row of some format is lost or gets another label: every figure is that of the prepared corpus."""
    prepared, _ = evaluate("--corpus", make_corpus({"test": pairs}, name="faq"), "--threshold", "0.5")
    path = labelled(ending)
    found, table = evaluate("--pairs", path, *COLUMNS, "--threshold", "0.5", "--corpus", "faq")
    own = ("file", "seconds")
    assert {k: v for k, v in found.items() if k not in own} == {k: v for k, v in prepared.items() if k not in own}
    assert found["file"] == str(path) and f"on {path} (64 pairs)" in table
    assert {"accuracy", "spearman", "map"} <= found.keys()


def test_three_columns_without_a_header(evaluate, tmp_path, pairs):
    """Fails if the first pair of a file without names is taken for them, or columns are mixed up."""
    (tmp_path / "a.txt").write_text("".join(f"{a}\t{b}\t{y:g}\n" for a, b, y in pairs), encoding="utf-8")
    (tmp_path / "b.tsv").write_text("".join(f"{y:g}\t{b}\t{a}\n" for a, b, y in pairs), encoding="utf-8")
    first, _ = evaluate("--pairs", tmp_path / "a.txt")
    second, _ = evaluate("--pairs", tmp_path / "b.tsv", "--text_columns", "2", "1", "--label_column", "0")
    assert first["pairs"] == 64 and first["spearman"] == pytest.approx(second["spearman"], abs=1e-9)
    assert "average_precision" in first, "0 and 1 are binary labels"


def test_labels_may_be_words(evaluate, tmp_path, pairs):
    """Fails if a file that `prepare` reads is measured only after its labels were replaced."""
    for name, words in {"a": "01", "b": "否是", "c": ("异", "同")}.items():
        rows = "".join(f"{a},{b},{words[int(y)]}\n" for a, b, y in pairs)
        (tmp_path / f"{name}.csv").write_text(rows, encoding="gb18030")
    flags = {"a": (), "b": (), "c": ("--label_values", "异=0", "同=1")}
    found = [evaluate("--pairs", tmp_path / f"{n}.csv", "--encoding", "gb18030", *some)[0] for n, some in flags.items()]
    assert len({result["spearman"] for result in found}) == 1 and found[0]["pairs"] == 64


def test_other_numbers_are_grades(evaluate, labelled):
    """Fails if grades are cut to 0 and 1."""
    found, _ = evaluate("--pairs", labelled(".csv", lambda value: 3 * value + 1), *COLUMNS)
    assert "average_precision" not in found and found["threshold_from"] == "none: the labels are not binary"


def test_the_threshold_is_that_of_the_model(evaluate, labelled, tiny_model, tmp_path):
    """Fails if a user's own labels are not judged by what `similarity` says of them."""
    shutil.copytree(tiny_model, tmp_path / "model")
    record = {"recipe": {}, "environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0}
    RunRecord(**record, history=[], thresholds={"faq": 0.25}).save(tmp_path / "model")
    flags = ("--pairs", labelled(".csv"), *COLUMNS)
    assert evaluate(*flags, model=tmp_path / "model")[0]["threshold"] == 0.25
    RunRecord(**record, history=[], thresholds={"faq": 0.25, "other": 0.5}).save(tmp_path / "model")
    assert evaluate(*flags, model=tmp_path / "model")[0]["threshold"] is None
    assert evaluate(*flags, "--corpus", "other", model=tmp_path / "model")[0]["threshold"] == 0.5


@pytest.mark.parametrize(
    ("label", "flags", "message"),
    [
        (lambda value: "perhaps", COLUMNS, "mine.csv, pair 1: .* in same, got 'perhaps'"),
        (lambda value: value, ("--label_column", "same"), "sentence1 sentence2 same: expected different ones"),
        (lambda value: value, (), "Name it with --text_columns and --label_column"),
        (lambda value: value, (*COLUMNS, "--find_threshold"), "has no validation split"),
        (lambda value: value, (*COLUMNS[:2], *COLUMNS[3:]), "takes two column names"),
    ],
)
def test_what_cannot_be_read_is_named(evaluate, labelled, label, flags, message):
    """Fails if a label is guessed, a column is taken for another, or a threshold is found on the tested rows."""
    with pytest.raises(InputError, match=message):
        evaluate("--pairs", labelled(".csv", label), *flags)
