"""Token ids of texts and pairs: each distinct text is tokenised once, and a long one no further than it is read.

The ids equal the tokenizer's own for whole texts. No number of characters holds enough tokens for certain: a run of
spaces has none, a word of 10,000 characters may be a single unknown token. So a long text is tokenised up to a window,
and as a whole if the window does not settle its tokens.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from cosent.compute.state import run_tokenizer
from cosent.errors import InputError

WINDOW = 8  # characters tokenised per token that is read: twice what a token of English has
MARGIN = 64  # characters at the end of a window that may be read in another way with what follows
CHUNK_CHARACTERS = 2**20  # tokenised in one call, which limits its memory
DIGITS = re.compile(r"\d*.?", re.DOTALL)  # the rest of a number, and what follows it
NO_EXTRAS = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}


class Contents(NamedTuple):
    """The tokens of a text without special ones."""

    ids: list[int]  # up to the limit
    total: int  # of the whole text, or of the window that settled `ids`


def contents(tokenizer, texts: Iterable[str], limit: int) -> dict[str, Contents]:
    """The first `limit` tokens of each distinct text (the last ones, if its tokenizer cuts the others)."""
    left = tokenizer.truncation_side == "left"
    reads = [(text, text) for text in dict.fromkeys(texts)]
    margin = 0
    if not left and any(len(text) > WINDOW * limit for text, _ in reads):
        margin = MARGIN + max(map(len, tokenizer.get_added_vocab()), default=0)
        reads = [(text, window(text, WINDOW * limit + margin)) for text, _ in reads]
    read: dict[str, Contents] = {}
    while reads:
        whole = []
        for chunk in chunks(reads):
            rows = run_tokenizer(tokenizer, [part for _, part in chunk], add_special_tokens=False, **NO_EXTRAS)
            for place, ((text, part), ids) in enumerate(zip(chunk, rows["input_ids"], strict=True)):
                if len(part) < len(text) and not settled(rows.encodings[place], limit, len(part) - margin):
                    whole.append((text, text))
                else:
                    read[text] = Contents(cut(ids, limit, left), len(ids))
        reads = whole
    return read


def window(text: str, characters: int) -> str:
    """Prefix of a text that cuts no number: some tokenizers group digits from the end."""
    more = DIGITS.match(text, characters)
    return text if more is None else text[: more.end()]


def chunks(reads: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Splits pairs of a text and its part into lists of about `CHUNK_CHARACTERS` characters of parts."""
    start = characters = 0
    for position, (_, part) in enumerate(reads):
        characters += len(part)
        if characters >= CHUNK_CHARACTERS or position + 1 == len(reads):
            yield reads[start : position + 1]
            start, characters = position + 1, 0


def settled(row, limit: int, end: int) -> bool:
    """Whether the first `limit` tokens stay the same, whatever follows the prefix.

    They are, if they end before the character `end` and two words that come after them are in the part: rules that
    split words look at no more than the next one, and merges stay within a word.
    """
    return len(row) > limit and row.offsets[limit - 1][1] <= end and row.word_ids[-1] - row.word_ids[limit - 1] > 2


def cut(ids: list[int], limit: int, left: bool) -> list[int]:
    if len(ids) <= limit:
        return ids
    return ids[len(ids) - limit :] if left else ids[:limit]


def frame(row) -> list[list[int]]:
    """The special tokens before, between and behind the texts of an encoding."""
    parts: list[list[int]] = [[]]
    previous = None
    for token, text in zip(row.ids, row.sequence_ids, strict=True):
        if text is None:
            parts[-1].append(token)
        elif text != previous:
            parts.append([])
            previous = text
    return parts


def sample(tokens: dict[str, Contents]) -> str:
    """The shortest text with tokens, "" if there is none; it shows which special tokens surround a text."""
    return min((text for text, content in tokens.items() if content.total), key=len, default="")


def read_texts(tokenizer, texts: Sequence[str], max_length: int | None) -> tuple[list[list[int]], list[bool]]:
    """Token ids of texts with `truncation=True`, and whether each was cut.

    Args:
        max_length: tokens, special ones included; None for all.
    """
    limit, left = sys.maxsize if max_length is None else max_length, tokenizer.truncation_side == "left"
    tokens = contents(tokenizer, texts, limit)
    parts = frame(run_tokenizer(tokenizer, [sample(tokens)], **NO_EXTRAS).encodings[0])
    before, after = parts[0], [token for part in parts[1:] for token in part]
    room = max(0, limit - len(before) - len(after))
    read = {text: [*before, *cut(content.ids, room, left), *after] for text, content in tokens.items()}
    return [read[text] for text in texts], [tokens[text].total > room for text in texts]


def read_pairs(tokenizer, first: Sequence[str], second: Sequence[str], max_length: int) -> dict[str, list]:
    """Token ids of pairs with `truncation="longest_first"`, as `tokenize_joined` returns them."""
    tokens, left = contents(tokenizer, [*first, *second], max_length), tokenizer.truncation_side == "left"
    text = sample(tokens)
    encoded = run_tokenizer(tokenizer, [text], [text], return_attention_mask=False, verbose=False)
    row = encoded.encodings[0]
    before, between, after = (frame(row) + [[], []])[:3]
    segments = encoded.get("token_type_ids", [[0] * len(row)])[0]
    zeros = segments.count(0)
    if segments != [0] * zeros + [1] * (len(segments) - zeros):
        raise InputError(f"Segment ids {segments}: expected zeros before ones. Pass --segment_ids zero.")
    around = zeros - row.sequence_ids.count(0)  # special tokens of segment 0
    room = max(0, max_length - len(before) - len(between) - len(after))

    @cache
    def whole(text: str) -> int:
        return contents(tokenizer, [text], sys.maxsize)[text].total

    pairs: dict[str, list] = {"input_ids": [], "first_tokens": [], "truncated": []}
    for one, other in zip(first, second, strict=True):
        (ids1, count1), (ids2, count2) = tokens[one], tokens[other]
        if min(count1, count2) > max_length and room % 2:  # the longer one keeps a token more
            count1, count2 = whole(one), whole(other)
        if truncated := count1 + count2 > room:
            shorter = min(count1, count2, room // 2)
            count1, count2 = (room - shorter, shorter) if count1 > count2 else (shorter, room - shorter)
        ids = [*before, *cut(ids1, count1, left), *between, *cut(ids2, count2, left), *after]
        pairs["input_ids"].append(ids)
        pairs["first_tokens"].append(len(ids) if zeros == len(segments) else around + count1)
        pairs["truncated"].append(truncated)
    return pairs
