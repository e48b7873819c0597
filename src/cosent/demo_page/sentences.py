"""What is typed into the page, as sentences that models and files can take."""

import re

from cosent.errors import InputError

LONGEST = 1000  # characters of a sentence; what a model reads of it ends earlier
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
SURROGATE = re.compile(r"[\ud800-\udfff]")  # half of a character: no tokenizer and no file takes one


def sentence(text: object, name: str) -> str:
    """One line of text; line breaks and control characters become spaces, lone surrogates U+FFFD.

    Args:
        name: what it is, in both languages, for messages.

    Raises:
        InputError: nothing, or more than `LONGEST` characters.
    """
    found = " ".join(SURROGATE.sub("\ufffd", CONTROL.sub(" ", "" if text is None else str(text))).split())
    if not found:
        raise InputError(f"{name}：空的，请先填写。It is empty: write something.")
    if len(found) > LONGEST:
        raise InputError(
            f"{name}：{len(found):,} 个字符，最多 {LONGEST:,} 个，请缩短。"
            f"It has {len(found):,} characters, and at most {LONGEST:,} are read. Shorten it."
        )
    return found
