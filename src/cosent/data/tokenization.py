"""Tokenise pairs of sentences, separately for a bi-encoder or joined for a cross-encoder."""

import json
import logging

import numpy as np

from cosent.compute.threads import run_tokenizer
from cosent.data.prefix import NO_PREFIXES, Prefixes
from cosent.errors import InputError
from cosent.schema import COLUMNS

logger = logging.getLogger(__name__)


def tokenize_apart(batch: dict, tokenizer, max_length: int, prefixes: Prefixes = NO_PREFIXES) -> dict[str, list]:
    """Token ids of both sentences behind their prompts, each cut at `max_length`, and how many of the two were cut."""
    options = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    sides = [run_tokenizer(tokenizer, texts, **options) for texts in prefixed(batch, prefixes)]
    cut = np.array([[bool(row.overflowing) for row in side.encodings] for side in sides])
    return {"input_ids1": sides[0]["input_ids"], "input_ids2": sides[1]["input_ids"], "truncated": cut.sum(axis=0)}


def tokenize_joined(batch: dict, tokenizer, max_length: int, prefixes: Prefixes = NO_PREFIXES) -> dict[str, list]:
    """Token ids of `[CLS] sentence1 [SEP] sentence2 [SEP]` with their prompts, cut at the end of the longer sentence.

    Returns:
        `input_ids`; `first_tokens`, how many of them have segment id 0 (all, if the tokenizer has no segments);
        `truncated`, whether the pair was cut.

    Raises:
        InputError: the tokenizer numbers segments in another way than zeros before ones.
    """
    options = {"truncation": "longest_first", "max_length": max_length, "return_attention_mask": False}
    pairs = run_tokenizer(tokenizer, *prefixed(batch, prefixes), **options)
    ids, first_tokens = pairs["input_ids"], [len(ids) for ids in pairs["input_ids"]]
    for row, segments in enumerate(pairs.get("token_type_ids", [])):
        first_tokens[row] = len(segments) - sum(segments)
        if segments != [0] * first_tokens[row] + [1] * sum(segments):
            raise InputError(
                f"This tokenizer gives a pair the segment ids {segments}, expected zeros before ones: training would "
                "not match pretraining. Pass --segment_ids zero, or take another encoder."
            )
    truncated = [bool(row.overflowing) for row in pairs.encodings]
    return {"input_ids": ids, "first_tokens": first_tokens, "truncated": truncated}


def prefixed(batch: dict, prefixes: Prefixes) -> list[list[str]]:
    """Both columns of sentences, each sentence behind the prompt of its side."""
    sides = zip(COLUMNS[:2], prefixes, strict=True)
    return [[prefix.text + sentence for sentence in batch[name]] for name, prefix in sides]


def tokenizer_rules(tokenizer) -> str:
    """A fast tokenizer's rules and vocabulary, without the state of its last call: part of a cache's key."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return f"{tokenizer.model_input_names}|{json.dumps(backend)}"


def warn_truncated(truncated: int, total: int, unit: str, max_length: int, where: str = "", flag: str = "") -> None:
    """Warns about truncated text, unless `truncated` is 0.

    Args:
        truncated: how many of `total` were longer than `max_length` tokens.
        unit: what is counted, `sentences` or `pairs`.
        where: the corpus and split they are from.
        flag: the flag that sets the limit.
    """
    if truncated:
        logger.warning(
            "%s%d of %d %s are longer than %d tokens and are truncated.%s",
            f"{where}: " if where else "",
            truncated,
            total,
            unit,
            max_length,
            f" Raise {flag} to read more." if flag else "",
        )
