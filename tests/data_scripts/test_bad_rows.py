"""If these fail, a damaged file trains a model on wrong pairs, or a sound one is refused."""

import pytest

BINARY = ("--label_kind", "binary")
GRADED = ("--label_kind", "graded", "--label_min", "0", "--label_max", "5")
NLI = ("--label_kind", "nli")
GOOD = "今天晴\t今天是晴天\t1\n"

BAD_ROWS = [  # kind of labels, a bad second line, what the error names
    (BINARY, "只有一句\t1\n", "3 columns, got 2"),
    (BINARY, "甲\t乙\t丙\t1\n", "3 columns, got 4"),
    (BINARY, "甲\t　\t1\n", "sentence2, got an empty"),
    (BINARY, "\u200b\t乙\t1\n", "sentence1, got an empty"),
    (BINARY, "甲\t乙\t2\n", "0 or 1, got '2'"),
    (BINARY, "甲\t乙\t0.5\n", "0 or 1, got '0.5'"),
    (BINARY, "甲\t乙\tnan\n", "0 or 1, got 'nan'"),
    (BINARY, "甲\t乙\t同\n", "0 or 1, got '同'"),
    (BINARY, '"甲\t乙"\t1\t0\n', "3 columns, got 4"),
    (BINARY, "甲乙\t丙丁\t1\n".encode("gbk"), "UTF-8"),
    (BINARY, "甲\t乙\t1\n".encode("utf-16"), "UTF-8"),
    (GRADED, "甲\t乙\t5.5\n", "0 to 5, got '5.5'"),
    (GRADED, "甲\t乙\tinf\n", "0 to 5, got 'inf'"),
    (NLI, "甲\t乙\t蕴含\n", "contradiction, neutral, entailment"),
    (NLI, "甲\t乙\t0\n", "contradiction, neutral, entailment"),
]


@pytest.mark.parametrize(("flags", "bad", "message"), BAD_ROWS)
def test_a_bad_row_stops_or_is_skipped_and_listed(bench, flags, bad, message):
    good = GOOD.replace("\t1", "\tneutral") if flags is NLI else GOOD
    path = bench.write("pairs.tsv", good.encode() + (bad if isinstance(bad, bytes) else bad.encode()))
    bench.stops(f"pairs.tsv, line 2: .*{message}.*--on_bad_rows skip", "mine", "--source", path, *flags)
    assert [path.name for path in bench.folder.iterdir()] == ["pairs.tsv"]  # nothing half written
    manifest = bench.prepare("mine", "--source", path, *flags, "--on_bad_rows", "skip")
    train = manifest["splits"]["train"]
    assert train["rows"] == 1 and train["left_out"]["bad row"] == len(train["bad_rows"]) >= 1
    assert train["bad_rows"][0]["line"] == 2 and train["bad_rows"][0]["file"] == str(path)
    assert train["bad_rows"][0]["text"] and train["bad_rows"][0]["reason"]
    assert any("bad row" in warning for warning in manifest["warnings"])


def test_a_bad_json_row_stops(bench):
    for bad, message in (
        ("{'sentence1': 1}\n", "not JSON"),
        ('["甲", "乙", 1]\n', "JSON list"),
        ("[\n", "not JSON"),
        ('{"sentence1": "甲", "sentence2": "乙"}\n', "without label"),
        ('{"sentence1": null, "sentence2": "乙", "label": 1}\n', "sentence1, got None"),
        ('{"sentence1": "甲", "sentence2": "乙", "label": NaN}\n', "0 or 1, got nan"),
        ("[" * 200_000 + "\n", "one JSON object"),
        ('{"sentence1": "\\ud800", "sentence2": "乙", "label": 1}\n', "UTF-8"),
    ):
        path = bench.write("pairs.jsonl", '{"sentence1": "甲", "sentence2": "乙", "label": 1}\n' + bad)
        bench.stops(f"pairs.jsonl, line 2: .*{message}", "mine", "--source", path, *BINARY)


def test_a_stray_csv_quote_does_not_join_rows(bench):
    """Fails if a quote that closes rows later makes one sentence of them, or their number is lost when skipping."""
    path = bench.write("pairs.csv", '甲,乙,1\n"丙,丁,0\n戊,己,1\n')
    bench.stops("pairs.csv, line 2: .*comma-separated", "mine", "--source", path, *BINARY)
    for opening, closing in (('甲,"乙,1', '丙,丁",1'), ('"甲,乙",戊,1\n"丙,丁,0', '丙",丁,1')):
        bench.write("pairs.csv", f"{opening}\n今天,明天,0\n后天,昨天,0\n{closing}\n戊,己,0\n")
        bench.stops("pairs.csv, line .*quote", "mine", "--source", path, *BINARY)
    rows = '"你好,再见,1\n今天,明天,0\n甲,乙,0\n很好",不错,1\n戊,己,0\n己,庚,1\n'
    bench.write("pairs.csv", "sentence1,sentence2,label\n" + rows)
    bench.stops("line 2: .*quote", "mine", "--source", path, *BINARY)
    manifest = bench.binary(path, "--on_bad_rows", "skip")
    assert bench.rows() == [("戊", "己", 0.0), ("己", "庚", 1.0)]
    assert manifest["splits"]["train"]["left_out"]["bad row"] == 4


def test_a_quoted_sentence_may_span_lines(bench):
    """Fails if a sentence with line breaks is taken for rows that a stray quote joins, because one line of it has
    as many commas as a row, or if later rows have other numbers than in an editor."""
    text = '第一行\n第二,行,是\n第三行，"引"'
    quoted = text.replace('"', '""')
    path = bench.write("pairs.csv", f'sentence1,sentence2,label\n"{quoted}",乙,1\n甲,"{quoted}",0\n戊,己,9\n')
    bench.stops("line 8", "mine", "--source", path, *BINARY)
    bench.binary(path, "--on_bad_rows", "skip")
    assert bench.rows() == [(text, "乙", 1.0), ("甲", text, 0.0)]


def test_a_split_without_a_usable_row_stops(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t7\n")
    bench.stops("train split.*pairs.tsv.*line 1", "mine", "--source", path, *BINARY, "--on_bad_rows", "skip")
    assert not bench.output.exists()
