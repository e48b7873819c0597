"""If these fail, a damaged file trains a model on wrong pairs, or a sound one is refused."""

import pytest

from cosent.errors import InputError

GOOD = "今天晴\t今天是晴天\t1\n"
BINARY = ("--label_kind", "binary")

BAD_ROWS = {
    "two columns": (BINARY, "只有一句\t1\n", "expected 3 columns, got 2"),
    "four columns": (BINARY, "甲\t乙\t丙\t1\n", "expected 3 columns, got 4"),
    "empty sentence": (BINARY, "甲\t　\t1\n", "expected a sentence in sentence2, got an empty sentence"),
    "only a zero-width space": (BINARY, "\u200b\t乙\t1\n", "sentence1, got an empty sentence"),
    "binary label 2": (BINARY, "甲\t乙\t2\n", "a label that is 0 or 1, got '2'"),
    "binary label 0.5": (BINARY, "甲\t乙\t0.5\n", "a label that is 0 or 1, got '0.5'"),
    "label NaN": (BINARY, "甲\t乙\tnan\n", "a label that is 0 or 1, got 'nan'"),
    "label not a number": (BINARY, "甲\t乙\t同\n", "a label that is 0 or 1, got '同'"),
    "quotes do not join columns": (BINARY, '"甲\t乙"\t1\t0\n', "expected 3 columns, got 4"),
    "GBK": (BINARY, "甲乙\t丙丁\t1\n".encode("gbk"), "expected UTF-8, got other bytes"),
    "UTF-16": (BINARY, "甲\t乙\t1\n".encode("utf-16"), "expected UTF-8, got other bytes"),
    "graded out of range": (
        ("--label_kind", "graded", "--label_min", "0", "--label_max", "5"),
        "甲\t乙\t5.5\n",
        "a label that is a number from 0 to 5, got '5.5'",
    ),
    "graded infinite": (
        ("--label_kind", "graded", "--label_min", "0", "--label_max", "5"),
        "甲\t乙\tinf\n",
        "a number from 0 to 5, got 'inf'",
    ),
    "unknown NLI label": (("--label_kind", "nli"), "甲\t乙\t蕴含\n", "one of contradiction, neutral, entailment"),
    "NLI number": (("--label_kind", "nli"), "甲\t乙\t0\n", "numbers are ambiguous"),
}


@pytest.mark.parametrize(("flags", "bad", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_stops_with_file_line_and_remedy(bench, flags, bad, message):
    good = GOOD.replace("\t1", "\tneutral") if "nli" in flags else GOOD
    path = bench.write("pairs.tsv", good.encode() + (bad if isinstance(bad, bytes) else bad.encode()))
    with pytest.raises(InputError, match=f"pairs.tsv, line 2: .*{message}") as caught:
        bench.prepare("mine", "--source", path, *flags)
    assert "--on_bad_rows skip" in str(caught.value)
    assert not bench.output.exists()
    assert [path.name for path in bench.folder.iterdir()] == ["pairs.tsv"]  # nothing half written either


@pytest.mark.parametrize(("flags", "bad", "message"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_skip_leaves_the_row_out_and_says_so(bench, flags, bad, message):
    good = GOOD.replace("\t1", "\tneutral") if "nli" in flags else GOOD
    path = bench.write("pairs.tsv", good.encode() + (bad if isinstance(bad, bytes) else bad.encode()))
    manifest = bench.prepare("mine", "--source", path, *flags, "--on_bad_rows", "skip")
    train = manifest["splits"]["train"]
    assert train["rows"] == 1 and train["left_out"]["bad row"] == len(train["bad_rows"]) >= 1
    assert train["bad_rows"][0]["line"] == 2 and train["bad_rows"][0]["file"] == str(path)
    assert train["bad_rows"][0]["text"] and "expected" in train["bad_rows"][0]["reason"]
    assert any("left out, bad row" in warning for warning in manifest["warnings"])


JSON_ROWS = {
    "not JSON": ("{'sentence1': 1}\n", "text that is not JSON"),
    "a list": ('["甲", "乙", 1]\n', "one JSON object per line, got a JSON list"),
    "an array over several lines": ("[\n", "text that is not JSON"),
    "no label": ('{"sentence1": "甲", "sentence2": "乙"}\n', "a row without label"),
    "null sentence": ('{"sentence1": null, "sentence2": "乙", "label": 1}\n', "text in sentence1, got None"),
    "NaN": ('{"sentence1": "甲", "sentence2": "乙", "label": NaN}\n', "a label that is 0 or 1, got nan"),
    "deep lists": ("[" * 200_000 + "\n", "one JSON object per line, got one that cannot be read"),
    "lone surrogate": ('{"sentence1": "\\ud800", "sentence2": "乙", "label": 1}\n', "expected UTF-8"),
}


@pytest.mark.parametrize(("bad", "message"), JSON_ROWS.values(), ids=JSON_ROWS)
def test_a_bad_json_row_stops(bench, bad, message):
    path = bench.write("pairs.jsonl", '{"sentence1": "甲", "sentence2": "乙", "label": 1}\n' + bad)
    with pytest.raises(InputError, match=f"pairs.jsonl, line 2: .*{message}"):
        bench.prepare("mine", "--source", path, *BINARY)


def test_an_unclosed_csv_quote_does_not_swallow_the_rest(bench):
    path = bench.write("pairs.csv", '甲,乙,1\n"丙,丁,0\n戊,己,1\n')
    with pytest.raises(InputError, match="pairs.csv, line 2: expected comma-separated values"):
        bench.prepare("mine", "--source", path, *BINARY)


def test_a_stray_csv_quote_does_not_join_rows(bench):
    """Fails if a quote that closes rows later makes one sentence of them, or their number is lost when skipping."""
    text = 'sentence1,sentence2,label\n"你好,再见,1\n今天,明天,0\n甲,乙,0\n很好",不错,1\n戊,己,0\n己,庚,1\n'
    path = bench.write("pairs.csv", text)
    with pytest.raises(InputError, match="line 2: expected a quote closed where its sentence ends"):
        bench.prepare("mine", "--source", path, "--label_kind", "binary")
    manifest = bench.prepare("mine", "--source", path, "--label_kind", "binary", "--on_bad_rows", "skip")
    assert bench.rows() == [("戊", "己", 0.0), ("己", "庚", 1.0)]
    assert manifest["splits"]["train"]["left_out"]["bad row"] == 4


def test_a_quoted_sentence_may_span_lines(bench):
    """Fails if a sentence with line breaks is taken for rows that a stray quote joins, because one line of it has
    as many commas as a row."""
    text = "第一行\n第二,行,是\n第三行"
    path = bench.write("pairs.csv", f'sentence1,sentence2,label\n"{text}",乙,1\n甲,"{text}",0\n')
    bench.prepare("mine", "--source", path, *BINARY)
    assert bench.rows() == [(text, "乙", 1.0), ("甲", text, 0.0)]


def test_a_stray_quote_in_any_column_is_found(bench):
    for opening, closing in (('甲,"乙,1', '丙,丁",1'), ('"甲,乙",戊,1\n"丙,丁,0', '丙",丁,1')):
        path = bench.write("pairs.csv", f"{opening}\n今天,明天,0\n后天,昨天,0\n{closing}\n戊,己,0\n")
        with pytest.raises(InputError, match="expected a quote closed where its sentence ends"):
            bench.prepare("mine", "--source", path, *BINARY)


def test_a_split_without_a_usable_row_stops(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t7\n")
    with pytest.raises(InputError, match="train split has no usable row"):
        bench.prepare("mine", "--source", path, *BINARY, "--on_bad_rows", "skip")
    assert not bench.output.exists()
