"""Attention masks of packed rows: each architecture builds its own, and other sentences are hidden in it.

A transformers model describes what its tokens see (all, those before, a window around them) by a function of two
places, and lets the function registered for its attention implementation draw the mask. The registered ones are
extended here: while `sentences_apart` is entered, two tokens must also belong to one sentence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps

import torch
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    and_masks,
    packed_sequence_mask_function,
)

IMPLEMENTATIONS = ("sdpa", "eager")
current: ContextVar[torch.Tensor | None] = ContextVar("current", default=None)


@contextmanager
def sentences_apart(segments: torch.Tensor) -> Iterator[None]:
    """Lets the models that this thread calls on packed rows see only one sentence at a time.

    They must be called without an `attention_mask`. Empty places see each other, so that no softmax is empty.

    Args:
        segments: shape `(rows, width)`, the number of the sentence of each token, see `packing.Packed`.
    """
    extend_masks()
    before = current.set(segments)
    try:
        yield
    finally:
        current.reset(before)


@cache
def extend_masks() -> None:
    """Extends the registered functions, once in a process; without `sentences_apart` they draw what they always do."""
    for name in IMPLEMENTATIONS:
        AttentionMaskInterface.register(name, within_sentences(ALL_MASK_ATTENTION_FUNCTIONS[name]))


def within_sentences(draw: Callable) -> Callable:
    """A function that draws masks, with sentences kept apart in them."""

    @wraps(draw)
    def draw_apart(*args, **options):
        segments = current.get()
        if segments is not None:
            sees = and_masks(options["mask_function"], packed_sequence_mask_function(segments))
            # Not None where every token may see every other: such a mask would be left out.
            options |= {"mask_function": sees, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return draw(*args, **options)

    return draw_apart
