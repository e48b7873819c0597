"""What is typed becomes a sentence that a tokenizer and a file can take, or a message."""

import pytest

from cosent.demo_page.sentences import LONGEST, sentence
from cosent.errors import InputError


def test_a_sentence_is_one_line():
    """Fails if a pasted line break or tab would split a row of the exported file."""
    assert sentence(" 我\t喜欢\r\n北京\x00。\u2028 ", "x") == "我 喜欢 北京 。"


def test_half_a_character_is_replaced():
    """Fails if a lone surrogate, which JSON can carry, reaches a tokenizer or a file: both raise."""
    assert sentence("好\ud83d", "x") == "好\ufffd"
    assert sentence("😀", "x") == "😀"


@pytest.mark.parametrize("text", ["", None, " \n\t", "\x00"])
def test_nothing_is_refused(text):
    """Fails if an empty field is scored as if it were a sentence."""
    with pytest.raises(InputError, match="句子一.*It is empty"):
        sentence(text, "句子一")


def test_too_much_is_refused():
    """Fails if one user's novel makes the others wait."""
    assert len(sentence("长" * LONGEST, "x")) == LONGEST
    with pytest.raises(InputError, match="10,000 characters"):
        sentence("长" * 10_000, "x")
