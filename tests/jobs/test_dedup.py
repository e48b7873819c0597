"""Near-duplicates: groups and pairs of sentences, and the file without them."""

import json

import pytest

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import DecisionRule
from tests.conftest import CALIBRATION

LINES = ["怎么还款", "今天天气很好", "怎么还款？", "红色的苹果", "今天天气很好。", "怎么还款", "推荐一辆红车"]


@pytest.fixture
def dedup(tiny_bi, job, tmp_path, monkeypatch):
    """A function that runs the job on `LINES` and returns its lines of stdout, and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")

    def run(*flags, text="faq.txt"):
        words = ["--text", tmp_path / text, "--device", "cpu"]
        printed, said = job("cosent.jobs.dedup", "--model", tiny_bi, *words, *flags)
        return printed.splitlines(), said

    return run


def test_groups_and_the_file_without_duplicates(dedup, tiny_bi, tmp_path):
    """Fails if a sentence that is like no other is lost, or a duplicate stays."""
    lines, errors = dedup("--threshold", 0.99999)
    rows = ["       0  1.0000  怎么还款", "       5  1.0000  怎么还款"]
    assert lines == ["     row  cosine  sentence", "group 1: 2 sentences", *rows]
    same = {"sentences": ["怎么还款"] * 2, "cosines": [1.0, 1.0], "exact": [True, True]}
    assert json.loads(dedup("--threshold", 0.99999, "--json")[0][0]) == {"rows": [0, 5]} | same
    assert "of 7 dropped" in errors and "-> 1.0000            1  怎么还款 / 怎么还款 (1.0000)\n" in errors
    lines = dedup("--threshold", 0.9)[0]
    rows = [(float(row[1]), row[2]) for row in map(str.split, lines[2 : 2 + int(lines[1].split()[2])])]
    cosines = SentenceEncoder.from_pretrained(str(tiny_bi)).similarity(
        [rows[0][1]] * len(rows), [row[1] for row in rows]
    )
    assert [row[0] for row in rows] == pytest.approx(cosines.tolist(), abs=1e-4) and len(rows) > 2
    dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    assert (tmp_path / "unique.txt").read_text(encoding="utf-8").splitlines() == [*LINES[:5], LINES[6]]
    with pytest.raises(InputError, match=r"--output .*unique\.txt exists.*--overwrite"):
        dedup("--threshold", 0.99999, "--output", tmp_path / "unique.txt")
    assert dedup("--threshold", -1.0)[0][1] == "group 1: 7 sentences"


def test_what_differs_in_a_number_is_kept_apart(dedup, tmp_path):
    """Fails if 101 and 102 become one group, directly or through a sentence without a number, or nobody is told."""
    lines = ["房间101怎么走", "房间102怎么走", "房间怎么走", "房间101怎么走？"]
    (tmp_path / "rooms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups, said = dedup("--threshold", -1.0, text="rooms.txt")
    assert [line.split()[-1] for line in groups[2:]] == [lines[0], lines[3]]
    assert "kept apart: 3 by number or code" in said and "房间101怎么走 / 房间102怎么走" in said


def test_what_the_model_cannot_tell_apart_is_never_merged(dedup, tmp_path):
    """Fails if orders of persons whose names the tokenizer does not know become one, also through a third sentence."""
    lines = ["陈玙的订单", "陈玕的订单", "陈明的订单", "陈玙的订单", "陈军的订单"]
    (tmp_path / "orders.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    groups, said = dedup("--threshold", -1.0, text="orders.txt")
    assert [line.split()[0] for line in groups[1:]] == ["group", "0", "3", "group", "2", "4"]
    assert "by character that the model does not know (陈玙的订单 / 陈玕的订单" in said


def test_a_table_keeps_its_rows(dedup, tmp_path):
    """Fails if the answers of a table are lost in the file without duplicates, or with --overwrite in the table."""
    rows = "".join(f"{n},{line},答{n}\n" for n, line in enumerate(LINES))
    (tmp_path / "faq.csv").write_text("id,question,answer\n" + rows, encoding="utf-8")
    flags = ("--threshold", 0.99999, "--text_column", "question")
    dedup(*flags, "--output", tmp_path / "unique.csv", text="faq.csv")
    lines = (tmp_path / "unique.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["id,question,answer", *(row for n, row in enumerate(rows.splitlines()) if n != 5)]
    with pytest.raises(InputError, match=r"--output .*faq\.csv"):
        dedup(*flags, "--overwrite", "--output", tmp_path / "faq.csv", text="faq.csv")


def test_a_trained_model_needs_no_threshold(dedup, monkeypatch):
    """Fails if the threshold for merging that training found is not the default, one of several is chosen, or that of
    the verdict takes its place where no cosine is precise enough."""
    rules = {name: DecisionRule(name, 0.5, CALIBRATION, merge_threshold=0.99999) for name in ("faq", "lcqmc")}
    monkeypatch.setattr("cosent.models.decision.decision_rules", lambda model: rules)
    with pytest.raises(InputError, match=r"each of faq, lcqmc.*--threshold"):
        dedup()
    assert dedup("--corpus", "faq")[0] == dedup("--threshold", 0.99999)[0]
    rules["faq"] = DecisionRule("faq", 0.5, CALIBRATION)
    with pytest.raises(InputError, match=r"no cosine .*--threshold, e\.g\. 0\.97"):
        dedup("--corpus", "faq")
