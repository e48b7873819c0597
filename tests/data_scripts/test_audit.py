"""If these fail, the audit calls a leaky corpus clean, or its overlap floor is not the published quantity."""

import json

import pytest

from cosent.cli import parse
from cosent.errors import InputError
from data_scripts import audit

TRAIN = [("甲", "乙", 1), ("甲", "乙", 1), ("乙", "甲", 0), ("丙", "丁", 0), ("NS", "戊", 0), ("？！", "NS", 1)]
TEST = [("乙", "甲", 1), ("丁", "丙", 1), ("甲", "丙", 0), ("甲", "新", 1), ("新", "旧", 0)]


@pytest.fixture
def leaky(bench):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        bench.write(f"raw/{split}.tsv", "".join(f"{a}\t{b}\t{c}\n" for a, b, c in rows))
    bench.prepare("leaky", "--source", bench.folder / "raw", "--label_kind", "binary", "--on_conflict", "keep")
    return bench


def test_made_up_duplicates_and_leaks_are_found(leaky, capsys):
    file = leaky.folder / "audit.json"
    audit.main(*parse([str(leaky.output), "--output", str(file)], *audit.ARGUMENTS))
    report = json.loads(file.read_text(encoding="utf-8"))
    train = report["splits"]["train"]
    assert (train["repeated_ordered"], train["repeated_unordered"], train["conflicting_pairs"]) == (1, 2, 1)
    assert report["splits"]["test"]["characters"] == {"50": 1, "90": 1, "99": 1, "100": 1}
    assert report["leaks"]["train -> test"] == {
        "rows": 5,
        "pair": 2,
        "pair_other_label": 1,  # 丙丁 is 0 in train and 1 in test; 甲乙 has both labels in train
        "both_sentences": 3,
        "one_or_both_sentences": 4,
    }
    assert "leak train -> test" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["lcqmc", "."])
def test_a_missing_corpus_names_the_command(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="cosent prepare"):
        audit.main(*parse([folder], *audit.ARGUMENTS))


def test_the_floor_of_a_single_label_is_undefined():
    assert audit.overlap_spearman([("甲", "乙", 1.0), ("甲", "甲", 1.0)]) is None
