"""Bulk scoring of pairs of sentences, for `CrossEncoder.similarity`."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from cosent.compute.contexts import evaluating
from cosent.compute.onednn import onednn_linears
from cosent.data.collators import JoinedPairCollator
from cosent.data.prefix import NO_PREFIXES, Prefixes
from cosent.data.tokenization import tokenize_joined
from cosent.errors import InputError
from cosent.inference.batches import CHUNK_SEQUENCES, REORDER_TOKENS, device_batches


def score_pairs(
    encoder: nn.Module,
    sentences1: list[str],
    sentences2: list[str],
    batch_size: int,
    progress: Callable[[int], None] | None = None,
    prefixes: Prefixes = NO_PREFIXES,
) -> tuple[np.ndarray, int]:
    """Scores pairs in evaluation mode, in batches of similar length.

    Args:
        encoder: a `CrossEncoder`; its mode (train or eval) is restored.
        sentences1, sentences2: the sentences of each pair.
        batch_size: most pairs per forward pass, which also has at most `BATCH_TOKENS` tokens.
        progress: called after each batch with its number of pairs.
        prefixes: the prompts in front of both sides.

    Returns:
        float32 array of shape `(pairs,)` in the order given, and how many pairs were cut to `max_length`.

    Raises:
        InputError: a pair has no tokens.
    """
    scores, truncated = np.empty(len(sentences1), dtype=np.float32), 0
    with evaluating(encoder):
        for start in range(0, len(scores), CHUNK_SEQUENCES):
            chunk = slice(start, start + CHUNK_SEQUENCES)
            columns = {"sentence1": sentences1[chunk], "sentence2": sentences2[chunk]}
            pairs = tokenize_joined(columns, encoder.tokenizer, encoder.max_length, prefixes)
            empty = [row for row, ids in enumerate(pairs["input_ids"], start) if not ids]
            if empty:
                raise InputError(
                    f"Expected a token in every pair, got none in the one at position {empty[0]}: both sentences are "
                    "empty, and this tokenizer has no [CLS]. It would have no score. Drop it."
                )
            scores[chunk] = score_tokens(encoder, pairs, batch_size, progress)
            truncated += sum(pairs["truncated"])
    return scores, truncated


@torch.inference_mode()
def score_tokens(
    encoder: nn.Module, pairs: dict[str, list], batch_size: int, progress: Callable[[int], None] | None
) -> np.ndarray:
    """Runs the encoder over the result of `tokenize_joined`: float32 of shape `(pairs,)`, in the order given."""
    ids, first_tokens, device = pairs["input_ids"], pairs["first_tokens"], encoder.backbone.device
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    order = np.argsort(-lengths, kind="stable")
    scores = torch.empty(len(ids), device=device)
    collate = JoinedPairCollator.from_tokenizer(encoder.tokenizer)
    with onednn_linears(encoder, reorder=lengths.sum() >= REORDER_TOKENS):
        for start, stop in device_batches(lengths[order], batch_size, device):
            batch = collate([(ids[row], first_tokens[row], 0.0) for row in order[start:stop]])
            del batch["labels"]
            scores[start:stop] = encoder(**{name: tensor.to(device) for name, tensor in batch.items()})["scores"]
            if progress is not None:
                progress(stop - start)
    restored = np.empty(len(ids), dtype=np.float32)
    restored[order] = scores.cpu().numpy()  # the only synchronisation with the device
    return restored
