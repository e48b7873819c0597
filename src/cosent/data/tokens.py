"""Token ids of texts and pairs, equal to the tokenizer's own: each distinct text is tokenised once.

A tokenizer that reads pairs itself tokenises a query again with each of its documents.
"""

import sys
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import NamedTuple

from cosent.errors import InputError

NO_EXTRAS = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
tokenizer_lock = RLock()


def run_tokenizer(tokenizer, *texts: str | list[str], **options):
    """Calls a tokenizer, one thread at a time: a call stores its truncation in the tokenizer."""
    with tokenizer_lock:
        return tokenizer(*texts, **options)


class Contents(NamedTuple):
    """The tokens of a text without special ones."""

    ids: list[int]  # up to the limit
    total: int  # of the whole text


def contents(tokenizer, texts: Iterable[str], limit: int) -> dict[str, Contents]:
    """The first `limit` tokens of each distinct text (the last ones, if its tokenizer cuts the others)."""
    distinct, left = list(dict.fromkeys(texts)), tokenizer.truncation_side == "left"
    if not distinct:
        return {}
    rows = run_tokenizer(tokenizer, distinct, add_special_tokens=False, **NO_EXTRAS)["input_ids"]
    return {text: Contents(cut(ids, limit, left), len(ids)) for text, ids in zip(distinct, rows, strict=True)}


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


def tokenize_texts(tokenizer, texts: Sequence[str], max_length: int | None) -> tuple[list[list[int]], list[bool]]:
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


def tokenize_pairs(tokenizer, first: Sequence[str], second: Sequence[str], max_length: int) -> dict[str, list]:
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

    pairs: dict[str, list] = {"input_ids": [], "first_tokens": [], "truncated": []}
    for text1, text2 in zip(first, second, strict=True):
        (ids1, count1), (ids2, count2) = tokens[text1], tokens[text2]
        if truncated := count1 + count2 > room:
            shorter = min(count1, count2, room // 2)  # the longer one keeps a token more
            count1, count2 = (room - shorter, shorter) if count1 > count2 else (shorter, room - shorter)
        ids = [*before, *cut(ids1, count1, left), *between, *cut(ids2, count2, left), *after]
        pairs["input_ids"].append(ids)
        pairs["first_tokens"].append(len(ids) if zeros == len(segments) else around + count1)
        pairs["truncated"].append(truncated)
    return pairs
