"""If these fail, a retrieval file (query, positives, negatives) trains on other pairs or labels than it holds."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from cosent.errors import InputError

Q, A, B, C = "怎么还款", "如何还款", "怎么借款", "今天天气好"


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.fixture
def prepared(bench):
    """Returns a function that prepares rows of JSON lines and gives back the manifest."""

    def run(*rows: dict, flags=()):
        return bench.prepare("mine", "--source", bench.write("bge.jsonl", lines(*rows)), *flags)

    return run


def test_positives_become_1_and_negatives_0(bench, prepared, capsys):
    manifest = prepared(
        {"query": Q, "pos": [A], "neg": [B, C], "id": 7},
        {"query": C, "pos": [A]},
        {"query": B, "neg": [Q, A], "pos": []},
    )
    assert bench.rows() == [(Q, A, 1), (Q, B, 0), (Q, C, 0), (C, A, 1), (B, Q, 0), (B, A, 0)]
    assert manifest["label_kind"] == "binary" and manifest["label_max"] == 1
    train = manifest["splits"]["train"]
    assert (train["rows"], train["source_files"][0]["rows"]) == (6, 3)  # pairs, and rows of the file
    assert "         3 rows of " in capsys.readouterr().out
    assert (train["repeated_rows"], train["contradictory_pairs"]) == (1, 0)  # Q B and B Q are one pair
    assert any("1 rows in files of train repeat an earlier pair" in warning for warning in manifest["warnings"])


def test_scores_become_graded_labels_unchanged(bench, prepared, capsys):
    """Fails if scores are cut, scaled or swapped between texts; 8.5, -9 and 0.1 are also out of 0..1 and 0..5."""
    row = {"query": Q, "pos": [A], "neg": [B, C], "pos_scores": [8.5], "neg_scores": [0.1, -9], "prompt": "找同义句："}
    manifest = prepared(row)
    assert "prompt is not read" in capsys.readouterr().out
    assert bench.rows() == [(Q, A, 8.5), (Q, B, pytest.approx(0.1, rel=1e-6)), (Q, C, -9)]
    assert (manifest["label_kind"], manifest["label_min"], manifest["label_max"]) == ("graded", -9, 8.5)
    prepared(row, flags=("--label_kind", "binary"))
    assert [label for *_, label in bench.rows()] == [1, 0, 0]
    assert "pos_scores and neg_scores are not read" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"line 1: .* pos_scores\[0\].*-9 to 5"):
        prepared(row, flags=("--label_kind", "graded", "--label_min", "-9", "--label_max", "5"))


COLUMNS = {"query": [Q, C], "neg": [B, Q], "positive": [A, B]}
LISTS = {"query": [Q, C], "neg": [[B], None], "positive": [[A], [A, B]]}
TRIPLES = (
    ("t.csv", f"anchor,positive,negative_1,negative_2\n{Q},{A},{B},{C}\n", [(Q, A, 1), (Q, B, 0), (Q, C, 0)]),
    ("t.tsv", f"query\tpos\tneg\tnegative_2\n{Q}\t{A}\t{B}\t{C}\n", [(Q, A, 1), (Q, B, 0), (Q, C, 0)]),
    ("t.jsonl", lines({"anchor": Q, "positive": A, "negative_2": C, "negative_3": None}), [(Q, A, 1), (Q, C, 0)]),
    (
        "t.jsonl",
        lines({"query": Q, "response": A, "rejected_response": [B, C]}, {"query": C, "response": A}),
        [(Q, A, 1), (Q, B, 0), (Q, C, 0), (C, A, 1)],
    ),
    ("t.parquet", COLUMNS, [(Q, A, 1), (Q, B, 0), (C, B, 1), (C, Q, 0)]),
    ("t.parquet", LISTS, [(Q, A, 1), (Q, B, 0), (C, A, 1), (C, B, 1)]),
    ("t.xlsx", [("query", "positive", "negative"), (Q, A, B), (C, A, None)], [(Q, A, 1), (Q, B, 0), (C, A, 1)]),
)


@pytest.mark.parametrize(("name", "content", "expected"), TRIPLES)
def test_triples_and_lists_of_any_format(bench, name, content, expected):
    path = bench.folder / name
    if name == "t.parquet":
        pyarrow.parquet.write_table(pyarrow.table(content), path)
    else:
        path = bench.workbook(Sheet1=content) if name == "t.xlsx" else bench.write(name, content)
    bench.prepare("mine", "--source", path)
    assert bench.rows() == expected


def test_scores_of_a_reranker_are_taken_before_the_label_next_to_them(bench, capsys):
    path = bench.write("scored.tsv", f"query\tpassage\tlabel\tscore\n{Q}\t{A}\t1\t-3.5\n{Q}\t{C}\t0\t-9\n")
    manifest = bench.prepare("mine", "--source", path, "--label_kind", "scores")
    assert bench.rows() == [(Q, A, -3.5), (Q, C, -9)]
    assert (manifest["label_min"], manifest["label_max"]) == (-9, -3.5)
    assert "columns query, passage, score" in capsys.readouterr().out
    path = bench.write("equal.tsv", f"query\tpassage\tscore\n{Q}\t{A}\t2\n{Q}\t{C}\t2\n")
    bench.stops("got 2", "mine", "--source", path, "--label_kind", "scores")


@pytest.mark.parametrize("row", [{"query": Q, "response": A}, {"sentence_A": Q, "sentence_B": A}])
def test_labelled_rows_of_others(bench, row):
    """Fails if a pair with its label is taken for a positive."""
    path = bench.write("pairs.jsonl", lines(row | {"label": 0.25}))
    bench.prepare("mine", "--source", path, "--label_kind", "graded", "--label_max", "1")
    assert bench.rows() == [(Q, A, 0.25)]


GOOD = {"query": Q, "pos": [A], "neg": [B], "pos_scores": [3], "neg_scores": [1]}
BAD_ROWS = [
    ({"pos": [A], "neg": [B]}, "key query, .*pos, neg"),
    (GOOD | {"query": None}, "query, got None"),
    (GOOD | {"pos": 4}, "pos, got 4"),
    (GOOD | {"pos": ["\u200b"]}, r"pos\[0\], got an empty"),
    (GOOD | {"neg": [None]}, r"neg\[0\], got None"),
    ({"query": Q, "pos": [], "neg": []}, "pos or neg"),
    (GOOD | {"neg": [B, C]}, "2 scores in neg_scores.*got 1 scores"),
    ({"query": Q, "pos": [A]}, "1 scores in pos_scores.*got None"),
    (GOOD | {"pos_scores": [float("nan")]}, r"pos_scores\[0\].*got nan"),
]


def test_a_bad_row_stops_with_line_and_field_or_is_skipped(bench, prepared):
    for bad, message in BAD_ROWS:
        with pytest.raises(InputError, match=f"bge.jsonl, line 2: .*{message}") as caught:
            prepared(GOOD, bad)
        assert "--on_bad_rows skip" in str(caught.value) and not bench.output.exists()
    manifest = prepared(GOOD, *(bad for bad, _ in BAD_ROWS), flags=("--on_bad_rows", "skip"))
    assert bench.rows() == [(Q, A, 3), (Q, B, 1)]  # whole rows are left out: none of their pairs is half right
    assert manifest["splits"]["train"]["left_out"] == {"bad row": len(BAD_ROWS)}


def test_negatives_without_text_are_left_out_and_counted(bench, prepared):
    """Fails if `"neg": [""]`, as FlagEmbedding's users write it, costs the positives of its row, or shifts scores."""
    manifest = prepared({"query": Q, "pos": [A], "neg": [""]}, {"query": C, "pos": [A], "neg": "\u200b"})
    assert bench.rows() == [(Q, A, 1), (C, A, 1)]
    assert manifest["splits"]["train"]["left_out"] == {"empty negative": 2}
    prepared(GOOD | {"neg": ["", B], "neg_scores": [-7, 1]}, flags=("--on_bad_rows", "skip"))
    assert bench.rows() == [(Q, A, 3), (Q, B, 1)]
    with pytest.raises(InputError, match=r"(?s)line 1: .*pos\[0\].*--on_bad_rows") as caught:
        prepared({"query": Q, "pos": [""], "neg": [B]})
    assert "--text_columns" not in str(caught.value), "advice for another kind of file"


def test_labels_that_the_rows_cannot_have_stop(prepared):
    row = {"query": Q, "pos": [A], "neg": [B]}
    for kind in (("nli",), ("scores",), ("graded", "--label_min", "0", "--label_max", "1")):
        with pytest.raises(InputError, match=f"--label_kind {kind[0]} .*pos_scores"):
            prepared(row, flags=("--label_kind", *kind))
    with pytest.raises(InputError, match="--label_kind"):  # a pair: its label says nothing of the range
        prepared({"query": Q, "positive": A, "score": 0.3})
    with pytest.raises(InputError, match="--label_kind graded"):
        prepared(GOOD, flags=("--label_min", "0", "--label_max", "9"))


def test_whole_queries_are_carved_out(bench, prepared):
    """Fails if a query is in train and validation: the figure would be flattered."""
    rows = [{"query": f"问{i}", "pos": [f"答{i}"], "neg": [f"错{i}", f"误{i}"]} for i in range(60)]
    manifest = prepared(*rows, flags=("--validation_share", "0.1", "--test_share", "0.2"))
    assert [facts["rows"] for facts in manifest["splits"].values()] == [126, 18, 36]
    queries = [{row[0] for row in bench.rows(split)} for split in ("train", "validation", "test")]
    assert len(set.union(*queries)) == sum(map(len, queries)) == 60
