"""Lines of text files, and what a file that is not text says."""

import gzip

import pytest

from cosent.data.text import numbered_lines, read_texts
from cosent.errors import InputError


def test_lines_come_with_their_numbers(tmp_path):
    """Fails if a byte order mark or a line end of Windows becomes part of a sentence, or empty lines do not count."""
    plain, packed = tmp_path / "a.txt", tmp_path / "a.txt.gz"
    content = "\ufeff好\r\n\r\n 坏 \n末".encode()
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for path in (plain, str(packed)):
        assert list(numbered_lines(path)) == [(1, "好"), (2, ""), (3, " 坏 "), (4, "末")]
        assert list(read_texts([path])) == ["好", "坏", "末"]


def test_what_is_no_text_is_named_with_its_line(tmp_path):
    """Fails if a file in another encoding, a missing or a torn one ends in a stack trace, or without the place."""
    foreign, torn = tmp_path / "foreign.txt", tmp_path / "torn.txt.gz"
    foreign.write_bytes("好\n".encode() + "北京".encode("gb18030"))
    with pytest.raises(InputError, match=r"foreign.txt, line 2: expected UTF-8, got the byte 0xb1 .*GB18030"):
        list(numbered_lines(foreign))
    torn.write_bytes(gzip.compress("好\n".encode())[:-4])
    with pytest.raises(InputError, match="not a complete gzip file"):
        list(numbered_lines(torn))
    with pytest.raises(InputError, match="no file .*none.txt. Name a list of names"):
        list(numbered_lines(tmp_path / "none.txt", "a list of names"))
