"""Texts without labels, of `--text`."""

import gzip
import json

import pytest

from cosent.data.pairs import read_texts
from cosent.errors import InputError


def test_texts_of_every_kind_of_file(tmp_path):
    """Fails if a byte order mark or a line end of Windows becomes part of a sentence, or an empty line is a text."""
    content = "\ufeff好\r\n\r\n 坏 \n末".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    lines = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in ("好", "", "坏", "末"))
    (tmp_path / "a.jsonl").write_text(lines + "\n", encoding="utf-8")
    for name in ("a.txt", "a.txt.gz", "a.jsonl"):
        assert list(read_texts([tmp_path / name])) == ["好", "坏", "末"], name


def test_what_is_no_text_is_named_with_its_line(tmp_path):
    """Fails if a file in another encoding or a missing one ends in a stack trace, or without the place."""
    foreign = tmp_path / "foreign.txt"
    foreign.write_bytes("好\n".encode() + "北京".encode("gb18030"))
    with pytest.raises(InputError, match=r"foreign.txt, line 2: expected UTF-8, got other bytes .*GB18030"):
        list(read_texts([foreign]))
    with pytest.raises(InputError, match="no file .*none.txt"):
        list(read_texts([tmp_path / "none.txt"]))
