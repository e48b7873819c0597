"""The generate job as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosent.cli import parse
from cosent.data.files import SENTENCE, open_table, table_writer
from cosent.errors import InputError
from cosent.generate import GenerateArguments, main, read_texts
from cosent.models.student import Student


@pytest.mark.slow
def test_the_command(tiny_student, tmp_path):
    """Fails if the command of the README does not run, or its JSON does not hold what the method returns."""
    file = tmp_path / "texts.txt"
    file.write_text("怎么还款\n我\n", encoding="utf-8")
    command = [sys.executable, "-m", "cosent.generate", "--model", str(tiny_student), "--max_length", "4"]
    result = subprocess.run(
        [*command, "--text", str(file), "--output", str(tmp_path / "a.jsonl")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert list(dict.fromkeys(row["text"] for row in rows)) == ["怎么还款", "我"]
    refused = subprocess.run([*command, "好", "--top_p", "2"], capture_output=True, text=True)
    assert refused.returncode == 2 and "top_p" in refused.stderr and refused.stderr.startswith("error:")


def test_input_that_cannot_be_read(tmp_path):
    """Fails if an empty line shifts results against lines, or a missing file ends in a stack trace."""
    file = Path(tmp_path, "texts.txt")
    file.write_text("一\n\n二\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2"):
        read_texts(None, str(file))
    with pytest.raises(InputError, match="none.txt"):
        read_texts(None, str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match="--text FILE"):
        read_texts(["一"], str(file))


def test_sentences_of_a_sheet_are_written_to_a_sheet(tiny_student, tmp_path, capsys):
    """Fails if a user's xlsx is not read by the name of its column, or what is written is not what was generated."""
    with table_writer(tmp_path / "in.xlsx", ("id", "question")) as write:
        write([{"id": 1, "question": "怎么还款"}, {"id": 2, "question": "我"}])
    words = ["--model", str(tiny_student), "--text", str(tmp_path / "in.xlsx"), "--text_column", "question"]
    words += ["--max_length", "6", "--num", "3"]
    output = tmp_path / "out.xlsx"
    main(*parse([*words, "--output", str(output)], GenerateArguments))
    written = json.loads(capsys.readouterr().out)
    similar = Student.from_pretrained(str(tiny_student)).similar_sentences(["怎么还款", "我"], max_length=6, keep=3)
    both = zip(("怎么还款", "我"), similar, strict=True)
    expected = [(text, *found) for text, some in both for found in some or [(None, None)]]
    rows = open_table(output, ["text"], SENTENCE, "--text_column").rows()
    assert [(row["text"], row["similar"], row["score"]) for row in rows] == expected
    assert written["texts"] == 2 and written["sentences"] == sum(map(len, similar))
