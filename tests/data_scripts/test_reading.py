"""If these fail, sound raw files of some editor, publisher or platform are misread."""

import gzip
import itertools
import json


def test_editors_and_platforms_read_alike(bench):
    """Fails if a byte order mark, a line end or an odd space tears a row or becomes part of a sentence."""
    for mark, end, last in itertools.product((b"", b"\xef\xbb\xbf"), ("\n", "\r\n"), (True, False)):
        text = end.join(["今天晴\t今天是晴天\t1", "甲\t乙\t0"]) + (end if last else "")
        bench.binary(bench.write("pairs.tsv", mark + text.encode()))
        assert bench.rows() == [("今天晴", "今天是晴天", 1.0), ("甲", "乙", 0.0)], (mark, end, last)
    for odd in ("\u2028", "\x0b", "\x0c", "\x1c", "\x85", '"', "\ufeff"):
        bench.binary(bench.write("pairs.tsv", f"  左{odd}右 \t乙\t1\n丙\t丁\t0\n"))
        assert bench.rows() == [(f"左{odd}右", "乙", 1.0), ("丙", "丁", 0.0)], odd


def test_compressed_files_and_sheets_with_gaps_are_read(bench):
    bench.write("gz/train.tsv.gz", gzip.compress("甲\t乙\t1\n\n丙\t丁\t0\n\n".encode()))
    manifest = bench.binary(bench.folder / "gz")
    assert bench.rows() == [("甲", "乙", 1.0), ("丙", "丁", 0.0)]
    assert manifest["splits"]["train"]["left_out"] == {"blank line": 2}
    path = bench.workbook(Sheet1=[("label", "sentence1", "sentence2"), (1, "戊", "己"), (0, "庚", None)])
    bench.refuses("pairs.xlsx, row 3: .*sentence2, got None", path)
    bench.binary(path, "--on_bad_rows", "skip")
    assert bench.rows() == [("戊", "己", 1.0)]


def test_an_edited_raw_file_gives_new_rows(bench):
    """`datasets` alone would return the rows of the first build from its cache."""
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    first = bench.binary(path)
    path.write_text("丙\t丁\t0\n", encoding="utf-8")
    second = bench.binary(path)
    assert bench.rows() == [("丙", "丁", 0.0)]
    assert first["splits"]["train"]["source_files"] != second["splits"]["train"]["source_files"]


def test_pawsx_in_its_publishers_format(bench):
    header = "id\tsentence1\tsentence2\tlabel\n"
    bench.write("x-final/zh/translated_train.tsv", header + '1\t"甲" 公司\t乙\t1\n')
    bench.write("x-final/zh/dev_2k.tsv", header + "1\tNS\t乙\t0\n")
    manifest = bench.prepare("pawsx", "--source", bench.folder)
    assert bench.rows() == [('"甲" 公司', "乙", 1.0)]
    assert manifest["absent_splits"] == ["test"] and manifest["max_length"] == {"bi_encoder": 128, "cross_encoder": 256}


def test_nli_rows_without_gold_label_are_left_out_and_counted(bench):
    rows = [("甲", "乙", "entailment"), ("甲", "丙", "-"), ("甲", "丁", "contradiction"), ("甲", "戊", "neutral")]
    for key in ("gold_label", "label"):
        lines = [json.dumps({"sentence1": a, "sentence2": b, key: c, "id": 1}) for a, b, c in rows]
        bench.write("ocnli/train.10k.json", "\n".join(lines))
        manifest = bench.prepare("ocnli", "--source", bench.folder)
        assert [row[2] for row in bench.rows()] == [2.0, 0.0, 1.0]  # entailment ranks highest
        assert manifest["splits"]["train"]["left_out"] == {"no gold label (-)": 1}
        assert any("50,437" in warning for warning in manifest["warnings"])


def test_cnsd_files_are_found_under_their_own_names(bench):
    line = json.dumps({"sentence1": "甲", "sentence2": "乙", "gold_label": "neutral"}) + "\n"
    bench.write("cnsd-snli/cnsd_snli_v1.0.train.jsonl", line)
    assert bench.prepare("snli_zh", "--source", bench.folder / "cnsd-snli")["splits"]["train"]["rows"] == 1
    for name in ("train", "dev_matched", "dev_mismatched"):
        bench.write(f"mnli/cnsd_multil_{name}.jsonl", line)
    manifest = bench.prepare("cmnli", "--source", bench.folder / "mnli")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == {"train": 1, "validation": 2}


def test_nli_joins_its_parts_and_says_what_it_did(bench):
    for name in ("ocnli/train", "ocnli/dev", "snli_zh/dev", "snli_zh/test", "cmnli/dev"):
        bench.write(f"{name}.txt", f"{name}\t乙\tneutral\n")
    manifest = bench.prepare("nli", "--source", bench.folder)
    assert {row[0] for row in bench.rows()} == {"ocnli/train", "snli_zh/dev", "snli_zh/test", "cmnli/dev"}
    assert [row[0] for row in bench.rows("validation")] == ["ocnli/dev"]
    assert manifest["absent_splits"] == ["test"]
    for words in ("OCNLI dev", "snli_zh train"):
        assert any(words in warning for warning in manifest["warnings"])


def test_a_file_of_another_corpus_is_not_taken(bench):
    """dev.txt names no corpus: it would be in NLI three times, or prepare SNLI under OCNLI's name."""
    bench.write("snli_zh/dev.txt", "甲\t乙\tneutral\n")
    bench.stops("No file of ocnli .*dev.txt", "ocnli", "--source", bench.folder / "snli_zh")
    bench.write("train.txt", "甲\t乙\tneutral\n")
    bench.stops("train.txt .*snli_zh and of cmnli", "nli", "--source", bench.folder)
