"""The generate job as a user types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosent.errors import InputError
from cosent.generate import read_texts


@pytest.mark.slow
def test_the_command(tiny_student, tmp_path):
    """Fails if the command of the README does not run, or its JSON does not hold what the method returns."""
    file = tmp_path / "texts.txt"
    file.write_text("怎么还款\n我\n", encoding="utf-8")
    command = [sys.executable, "-m", "cosent.generate", "--model", str(tiny_student), "--max_length", "4"]
    result = subprocess.run([*command, "--input", str(file), "--json"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["怎么还款", "我"] and all(isinstance(row["similar"], list) for row in rows)
    refused = subprocess.run([*command, "--text", "好", "--top_p", "2"], capture_output=True, text=True)
    assert refused.returncode == 2 and refused.stderr.startswith("error: top_p must be")


def test_input_that_cannot_be_read(tmp_path):
    """Fails if an empty line shifts results against lines, or a missing file ends in a stack trace."""
    file = Path(tmp_path, "texts.txt")
    file.write_text("一\n\n二\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2 is empty"):
        read_texts(None, str(file))
    with pytest.raises(InputError, match="no file .* Name a UTF-8 file with one sentence per line"):
        read_texts(None, str(tmp_path / "none.txt"))
    with pytest.raises(InputError, match="either --text SENTENCE ... or --input FILE"):
        read_texts(["一"], str(file))
