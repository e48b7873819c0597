"""If these fail, a damaged file or a pair with two labels trains a model, or sound rows are refused or dropped."""

import pytest

BINARY = ("--label_kind", "binary")
GRADED = ("--label_kind", "graded", "--label_min", "0", "--label_max", "5")
NLI = ("--label_kind", "nli")
KEYED = '{"sentence1": "今天晴", "sentence2": "今天是晴天", "label": 1}\n'

# A kind of labels, a bad second line, what the error names. Other faults of files: tests/data/test_files.py.
BAD_ROWS = [
    (BINARY, "甲\t乙\0丙\t1\n", "sentence2, got a NUL"),
    (BINARY, "甲\t乙\t0.5\n", "0 or 1, got '0.5'"),
    (BINARY, "甲\t乙\tnan\n", "0 or 1, got 'nan'"),
    (BINARY, "甲乙\t丙丁\t1\n".encode("gbk"), "UTF-8.*--encoding gb18030"),
    (GRADED, "甲\t乙\t5.5\n", "0 to 5, got '5.5'"),
    (GRADED, "甲\t乙\tinf\n", "0 to 5, got 'inf'"),
    (NLI, "甲\t乙\t蕴含\n", "contradiction, neutral, entailment"),
    (BINARY, '{"sentence1": "甲", "sentence2": "乙"}\n', "without label"),
    (BINARY, '{"sentence1": "甲", "sentence2": "乙", "label": NaN}\n', "0 or 1, got nan"),
]


@pytest.mark.parametrize(("flags", "bad", "message"), BAD_ROWS)
def test_a_bad_row_stops_or_is_skipped_and_listed(bench, flags, bad, message):
    bad = bad if isinstance(bad, bytes) else bad.encode()
    name, good = ("a.jsonl", KEYED) if bad[:1] == b"{" else ("a.tsv", "今天晴\t今天是晴天\t1\n")
    good = good.replace("\t1", "\tneutral") if flags is NLI else good
    path = bench.write(name, good.encode() + bad)
    bench.stops(f"{name}, line 2: .*{message}.*--on_bad_rows skip", "mine", "--source", path, *flags)
    assert [path.name for path in bench.folder.iterdir()] == [name]  # nothing half written
    manifest = bench.prepare("mine", "--source", path, *flags, "--on_bad_rows", "skip")
    train = manifest["splits"]["train"]
    assert (train["rows"], train["left_out"]) == (1, {"bad row": 1})
    (listed,) = train["bad_rows"]
    assert (listed["file"], listed["line"]) == (str(path), 2) and listed["text"] and listed["reason"]
    assert any("bad row" in warning for warning in manifest["warnings"])


def test_rows_that_a_stray_quote_joins_are_skipped_one_by_one(bench):
    """Fails if a quote that closes rows later makes one sentence of them, or their number is lost when skipping."""
    rows = '"你好,再见,1\n今天,明天,0\n甲,乙,0\n很好",不错,1\n戊,己,0\n己,庚,1\n'
    path = bench.write("pairs.csv", "sentence1,sentence2,label\n" + rows)
    bench.refuses("line 2: .*quote", path)
    manifest = bench.binary(path, "--on_bad_rows", "skip")
    assert bench.rows() == [("戊", "己", 0.0), ("己", "庚", 1.0)]
    assert manifest["splits"]["train"]["left_out"]["bad row"] == 4


ROWS = "甲\t乙\t1\n丙\t丁\t0\n乙\t甲\t0\n甲\t乙\t1\n戊\t己\t1\n戊\t己\t1\n"


def test_contradictions_are_listed_dropped_or_kept(bench):
    """Fails if a pair with two labels trains in silence, without its lines, or other rows are dropped with it."""
    path = bench.write("pairs.tsv", ROWS)
    error = bench.refuses("1 pairs of train.*--on_conflict drop", path)
    assert f"1 in {path}, line 1; 0 in {path}, line 3; 1 in {path}, line 4\n" in error
    assert not bench.output.exists()
    manifest = bench.binary(path, "--on_conflict", "drop")
    assert bench.rows() == [("丙", "丁", 0), ("戊", "己", 1), ("戊", "己", 1)]
    train = manifest["splits"]["train"]
    assert train["left_out"] == {"contradictory pair": 3} and train["contradictory_pairs"] == 1
    assert any("3 left out" in warning for warning in manifest["warnings"])
    warnings = bench.binary(path, "--on_conflict", "keep")["warnings"]
    assert len(bench.rows()) == 6
    assert all(any(words in warning for warning in warnings) for words in ("1 pairs", "2 rows"))
    bench.write("pairs.tsv", "".join(f"句{i}\t话{i}\t{label}\n" for i in range(9) for label in (0, 1)))
    assert bench.refuses("9 pairs of train", path).count("; 1 in") == 3, "the first of many"


def test_what_contradicts_nothing(bench):
    """Fails if NLI pairs lose their order, published rows are dropped, or 1/3 and its float32 are two labels."""
    path = bench.write("pairs.tsv", "甲\t乙\tentailment\n乙\t甲\tneutral\n")
    bench.prepare("mine", "--source", path, "--label_kind", "nli")
    assert len(bench.rows()) == 2
    bench.write("ATEC/ATEC.train.data", "甲\t乙\t1\n甲\t乙\t0\n")
    bench.prepare("atec", "--source", bench.folder)
    assert len(bench.rows()) == 2
    bench.stops("atec .*--label_kind", "atec", "--source", bench.folder, "--on_conflict", "drop")
    path = bench.write("pairs.tsv", f"甲\t乙\t{1 / 3}\n乙\t甲\t0.3333333432674408\n甲\t丙\t0.5\n")
    manifest = bench.prepare("mine", "--source", path, *GRADED)
    assert manifest["splits"]["train"]["repeated_rows"] == 1
