"""`Prefix`: a prompt as a model reads it, in front of a sentence."""

from typing import NamedTuple

import torch


class Prefix(NamedTuple):
    """Text that is put in front of every sentence.

    Args:
        text: read with the sentence, in one sequence.
        skip: number of tokens at the start of the sequence that are not pooled; 0 pools those of the prompt too.
    """

    text: str = ""
    skip: int = 0


Prefixes = tuple[Prefix, Prefix]  # of the first and the second sentence of a pair
NO_PREFIX = Prefix()
NO_PREFIXES: Prefixes = (NO_PREFIX, NO_PREFIX)


def skipped(prefixes: Prefixes, pairs: int) -> dict[str, torch.Tensor]:
    """The entry `skip` of a batch, int64 of shape `(pairs, 2)`; no entry where all tokens are pooled."""
    counts = [prefix.skip for prefix in prefixes]
    return {"skip": torch.tensor([counts] * pairs)} if any(counts) else {}
