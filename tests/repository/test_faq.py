"""The error messages of the FAQ are those that a user sees, and what it tells them to do helps."""

import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import cosent.cli

FAQ = (Path(__file__).parents[2] / "docs/faq.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", FAQ, re.MULTILINE))
PREPARE = "prepare faq --source faq.csv"
BINARY = f"{PREPARE} --label_kind binary"


GRADES = f"{PREPARE} --label_kind graded --label_max 5"
CASES = {  # the beginning of a message: the rows after the header, the command, and what helps
    "There is no prepared corpus": ("还,借,0", "audit faq", BINARY),
    "'faq' is not in the table": ("还,借,0", PREPARE, "--label_kind binary"),
    "faq.csv, line 2: expected UTF-8": ("怎么还款,如何还款,1", BINARY, "--encoding gb18030"),
    "faq.csv, line 2: expected a label that is 0 or 1, got '同义'": (
        "还,借,同义",
        BINARY,
        "--label_values 异义=0 同义=1",
    ),
    "faq.csv, line 2: expected a label that is 0 or 1, got '5'": ("还,借,5", BINARY, GRADES),
    "faq.csv, line 1: expected a label": ("q1,q2,same\n还,借,1", BINARY, "--text_columns q1 q2 --label_column same"),
    "faq.csv, line 1: expected, each once": ("sentence1,sentence2\n还,借", BINARY, None),
    "faq.csv, line 3: expected a sentence": ("还,借,1\n,贷,0", BINARY, "--on_bad_rows skip"),
    "1 pairs of train have two": ("还,借,1\n还,借,0\n还,贷,1", BINARY, "--on_conflict drop"),
    "every train label is 1": ("还,借,1", BINARY, None),
    "mini has no decision rule": ("还,借,1", "dedup --model mini --text faq.csv --text_column sentence1", None),
}


@pytest.mark.parametrize("message", CASES)
def test_messages_of_the_faq(message, tmp_path, monkeypatch, capsys):
    """Fails if a message on the page is not the one of the job, or the flags next to it do not end it."""
    monkeypatch.chdir(tmp_path)
    rows, words, helps = CASES[message]
    header = "" if "line 1:" in message else "sentence1,sentence2,label\n"
    Path("faq.csv").write_text(f"{header}{rows}\n", encoding="gb18030" if "UTF-8" in message else "utf-8")

    def printed(words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["cosent", *words.split()])
        with suppress(SystemExit):
            cosent.cli.main()
        return "".join(capsys.readouterr())

    (shown,) = (row for row in ROWS if row.startswith(message))
    assert shown in printed(words)
    if helps:
        assert all(word in ROWS[shown] for word in helps.split() if word not in words)
        printed(helps if helps.startswith("prepare") else f"{words} {helps}")
        assert Path("data/faq/MANIFEST.json").is_file()
