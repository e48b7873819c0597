"""If these fail, sound raw files of some editor, publisher or platform are misread."""

import gzip
import json

import pytest

from cosent.data.files import table_writer
from cosent.errors import InputError

BINARY = ("--label_kind", "binary")


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no BOM", "BOM"])
@pytest.mark.parametrize("last", [True, False], ids=["closed", "open"])
def test_windows_files_read_as_unix_files(bench, end, mark, last):
    text = end.join(["今天晴\t今天是晴天\t1", "甲\t乙\t0"]) + (end if last else "")
    path = bench.write("pairs.tsv", mark + text.encode())
    bench.prepare("mine", "--source", path, *BINARY)
    assert bench.rows() == [("今天晴", "今天是晴天", 1.0), ("甲", "乙", 0.0)]


@pytest.mark.parametrize("odd", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85", '"', "\ufeff"])
def test_only_line_feeds_end_a_row(bench, odd):
    """A sentence with U+2028 or a form feed inside is one sentence, not two broken rows."""
    path = bench.write("pairs.tsv", f"  左{odd}右 \t乙\t1\n丙\t丁\t0\n")
    bench.prepare("mine", "--source", path, *BINARY)
    assert bench.rows()[0] == (f"左{odd}右", "乙", 1.0) and len(bench.rows()) == 2


def test_sheets_and_compressed_files_are_read(bench):
    """Fails if pairs that somebody keeps in Excel, or compressed, must be converted first."""
    bench.folder.joinpath("gz").mkdir()
    bench.write("gz/train.tsv.gz", gzip.compress("甲\t乙\t1\n丙\t丁\t0\n".encode()))
    bench.prepare("mine", "--source", bench.folder / "gz", *BINARY)
    assert bench.rows() == [("甲", "乙", 1.0), ("丙", "丁", 0.0)]
    with table_writer(bench.folder / "pairs.xlsx", ("label", "sentence1", "sentence2")) as write:
        write([{"sentence1": "戊", "sentence2": "己", "label": 1}, {"sentence1": "庚", "sentence2": None, "label": 0}])
    with pytest.raises(InputError, match="pairs.xlsx, row 3: expected text in sentence2, got None"):
        bench.prepare("mine", "--source", bench.folder / "pairs.xlsx", *BINARY, "--overwrite")
    skip = ("--overwrite", "--on_bad_rows", "skip")
    bench.prepare("mine", "--source", bench.folder / "pairs.xlsx", *BINARY, *skip)
    assert bench.rows() == [("戊", "己", 1.0)]


def test_blank_lines_are_counted(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n\n丙\t丁\t0\n\n")
    manifest = bench.prepare("mine", "--source", path, *BINARY)
    assert manifest["splits"]["train"]["left_out"] == {"blank line": 2}


def test_csv_quotes_may_span_lines(bench):
    path = bench.write("pairs.csv", '"甲，""乙""\n丙",丁,1\n戊,己,9\n')
    with pytest.raises(InputError, match="line 3"):  # counted in lines of the file, as an editor does
        bench.prepare("mine", "--source", path, *BINARY)
    bench.prepare("mine", "--source", path, *BINARY, "--on_bad_rows", "skip")
    assert bench.rows() == [('甲，"乙"\n丙', "丁", 1.0)]


def test_an_edited_raw_file_gives_new_rows(bench):
    """`datasets` alone would return the rows of the first build from its cache."""
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    first = bench.prepare("mine", "--source", path, *BINARY)
    path.write_text("丙\t丁\t0\n", encoding="utf-8")
    second = bench.prepare("mine", "--source", path, *BINARY, "--overwrite")
    assert bench.rows() == [("丙", "丁", 0.0)]
    assert first["splits"]["train"]["source_files"] != second["splits"]["train"]["source_files"]


def test_the_columns_have_the_types_of_the_contract(bench):
    import datasets

    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    bench.prepare("mine", "--source", path, *BINARY)
    features = datasets.load_dataset("parquet", data_files=str(bench.output / "train.parquet"), cache_dir=bench.folder)[
        "train"
    ].features
    assert {name: feature.dtype for name, feature in features.items()} == {
        "sentence1": "string",
        "sentence2": "string",
        "label": "float32",
    }


def test_pawsx_in_its_publishers_format(bench):
    header = "id\tsentence1\tsentence2\tlabel\n"
    bench.write("x-final/zh/translated_train.tsv", header + '1\t"甲" 公司\t乙\t1\n')
    bench.write("x-final/zh/dev_2k.tsv", header + "1\tNS\t乙\t0\n")
    manifest = bench.prepare("pawsx", "--source", bench.folder)
    assert bench.rows() == [('"甲" 公司', "乙", 1.0)]
    assert manifest["absent_splits"] == ["test"] and manifest["max_length"] == {"bi_encoder": 128, "cross_encoder": 256}


@pytest.mark.parametrize("key", ["gold_label", "label"])
def test_nli_rows_without_gold_label_are_left_out_and_counted(bench, key):
    rows = [("甲", "乙", "entailment"), ("甲", "丙", "-"), ("甲", "丁", "contradiction"), ("甲", "戊", "neutral")]
    lines = [json.dumps({"sentence1": a, "sentence2": b, key: c, "id": 1}, ensure_ascii=False) for a, b, c in rows]
    bench.write("ocnli/train.10k.json", "\n".join(lines))
    manifest = bench.prepare("ocnli", "--source", bench.folder)
    assert [row[2] for row in bench.rows()] == [2.0, 0.0, 1.0]  # entailment ranks highest
    assert manifest["splits"]["train"]["left_out"] == {"no gold label (-)": 1}
    assert "train has 3 rows, the published corpus has 50,437." in manifest["warnings"]


def test_cnsd_files_are_found_under_their_own_names(bench):
    line = json.dumps({"sentence1": "甲", "sentence2": "乙", "gold_label": "neutral"}) + "\n"
    bench.write("cnsd-snli/cnsd_snli_v1.0.train.jsonl", line)
    assert bench.prepare("snli_zh", "--source", bench.folder / "cnsd-snli")["splits"]["train"]["rows"] == 1
    for name in ("train", "dev_matched", "dev_mismatched"):
        bench.write(f"mnli/cnsd_multil_{name}.jsonl", line)
    manifest = bench.prepare("cmnli", "--source", bench.folder / "mnli", "--overwrite")
    assert {split: facts["rows"] for split, facts in manifest["splits"].items()} == {"train": 1, "validation": 2}


def test_nli_joins_its_parts_and_says_what_it_did(bench):
    for name in ("ocnli/train", "ocnli/dev", "snli_zh/dev", "snli_zh/test", "cmnli/dev"):
        bench.write(f"{name}.txt", f"{name}\t乙\tneutral\n")
    manifest = bench.prepare("nli", "--source", bench.folder)
    assert {row[0] for row in bench.rows()} == {"ocnli/train", "snli_zh/dev", "snli_zh/test", "cmnli/dev"}
    assert [row[0] for row in bench.rows("validation")] == ["ocnli/dev"]
    assert manifest["absent_splits"] == ["test"]
    assert any("OCNLI dev is the validation split" in warning for warning in manifest["warnings"])
    assert any("snli_zh train is not in the source" in warning for warning in manifest["warnings"])


def test_a_file_is_not_read_for_two_parts(bench):
    """train.txt next to the folders would otherwise be in NLI three times, without a word."""
    bench.write("train.txt", "甲\t乙\tneutral\n")
    with pytest.raises(InputError, match=r"train.txt could be of snli_zh and of cmnli.*a folder of its name"):
        bench.prepare("nli", "--source", bench.folder)


def test_a_folder_of_another_corpus_is_not_taken(bench):
    """dev.txt names no corpus: `--source snli_zh` for ocnli would otherwise prepare SNLI under OCNLI's name."""
    bench.write("snli_zh/dev.txt", "甲\t乙\tneutral\n")
    with pytest.raises(InputError, match="No file of ocnli in .*it holds dev.txt"):
        bench.prepare("ocnli", "--source", bench.folder / "snli_zh")
