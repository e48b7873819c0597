"""Input checks and batching for embedding and scoring: batches of similar length with a limited number of tokens."""

from collections.abc import Collection, Mapping, Set

import numpy as np
import torch

from cosent.errors import InputError

CHUNK_SEQUENCES = 32768  # tokenised and sorted at a time, which limits the memory of token ids
BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}  # cpu: measured, activations stay in the cache; cuda: enough to fill one
REORDER_TOKENS = 16384  # from this many tokens on, reordering the weights for oneDNN pays off


def check_sentences(sentences: Collection[str]) -> None:
    """Refuses anything but a list of strings.

    Raises:
        InputError: one string instead of a list of them, what has no order or no length, or an item that is not a
            string.
    """
    if isinstance(sentences, str):
        raise InputError(
            "Expected a list of sentences, got one string: its characters would be encoded one by one. Pass [sentence]."
        )
    if not isinstance(sentences, Collection) or isinstance(sentences, Set | Mapping):
        raise InputError(
            f"Expected a list of sentences, got {type(sentences).__name__}. Pass a list, whose order is that of the "
            "results; for a generator, list(sentences)."
        )
    for position, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise InputError(
                f"Expected sentences as strings, got {sentence!r} ({type(sentence).__name__}) at position {position}. "
                "Drop it, or convert it to text."
            )


def check_pairs(sentences1: Collection[str], sentences2: Collection[str]) -> None:
    """Refuses anything but two lists of strings of equal length.

    Raises:
        InputError: as for `check_sentences`, a string next to something else, or lists of different lengths.
    """
    if isinstance(sentences1, str) != isinstance(sentences2, str):
        kinds = f"{type(sentences1).__name__} and {type(sentences2).__name__}"
        raise InputError(f"similarity compares two strings, or two lists row by row, got {kinds}. Pass the same kind.")
    check_sentences(sentences1)
    check_sentences(sentences2)
    if len(sentences1) != len(sentences2):
        raise InputError(
            f"similarity compares row by row, got {len(sentences1)} and {len(sentences2)} sentences. Pass two lists of "
            "equal length."
        )


def check_finite(values: np.ndarray, first: int, of: str) -> None:
    """Refuses vectors or scores that nothing can be compared with.

    Args:
        values: shape `(rows, ...)`.
        first: number of the first row.
        of: what has the rows, for the message.

    Raises:
        InputError: NaN or an infinite number in a row.
    """
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if len(wrong):
        row = first + int(wrong[0])
        raise InputError(
            f"{of}: expected finite numbers from the model, got nan or inf for text {row + 1}. Compute in float32, "
            "leave the text out, or train the model again."
        )


def device_batches(lengths: np.ndarray, batch_size: int, device: torch.device) -> list[tuple[int, int]]:
    """`batch_bounds` with the token limit of a device.

    Raises:
        InputError: a `batch_size` below 1.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    return batch_bounds(lengths, batch_size, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"]))


def batch_bounds(lengths: np.ndarray, batch_size: int, tokens: int) -> list[tuple[int, int]]:
    """Splits sequences, longest first, into batches of at most `batch_size` sequences and `tokens` with padding.

    A sequence longer than `tokens` becomes its own batch.

    Args:
        lengths: shape `(sequences,)`, tokens of each, descending.
    """
    bounds, start = [], 0
    while start < len(lengths):
        stop = min(len(lengths), start + max(1, min(batch_size, tokens // int(lengths[start]))))
        bounds.append((start, stop))
        start = stop
    return bounds
