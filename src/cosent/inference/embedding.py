"""Bulk embedding of sentences, for `Embedder.encode`, the encode job and distillation."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize as scale_to_length_1

from cosent.compute.contexts import evaluating
from cosent.compute.onednn import onednn_linears
from cosent.compute.threads import run_tokenizer
from cosent.data.prefix import NO_PREFIX, Prefix
from cosent.errors import InputError
from cosent.inference.batches import CHUNK_SEQUENCES, REORDER_TOKENS, device_batches


@dataclass(frozen=True)
class TokenizedSentences:
    """Sentences as one flat array of token ids.

    Args:
        ids: shape `(tokens in all,)`, int64, sentence after sentence, longest first.
        lengths: shape `(sentences,)`, tokens of each, descending.
        order: shape `(sentences,)`, the index of each among the given sentences.
        truncated: shape `(sentences,)`, by given sentence, whether it was cut to the encoder's `max_length`.
    """

    ids: np.ndarray
    lengths: np.ndarray
    order: np.ndarray
    truncated: np.ndarray


def embed(
    encoder: nn.Module,
    sentences: list[str],
    batch_size: int,
    normalize: bool = False,
    progress: Callable[[int], None] | None = None,
    prefix: Prefix = NO_PREFIX,
) -> tuple[np.ndarray, int]:
    """Embeds sentences in evaluation mode, each distinct one once, in batches of similar length.

    Args:
        encoder: an `Embedder`; its mode (train or eval) is restored.
        sentences: any number of sentences in any order.
        batch_size: most sentences per forward pass, which also has at most `BATCH_TOKENS` tokens.
        normalize: scale every vector to length 1.
        progress: called after each batch with the number of completed `sentences`, repeated ones included.
        prefix: the prompt in front of every sentence.

    Returns:
        float32 array of shape `(len(sentences), hidden)` in the order of `sentences`, and how many of them were cut. A
        sentence without tokens, which some tokenizers can produce, has a vector of zeros.
    """
    rows: dict[str, int] = {}
    row = np.fromiter((rows.setdefault(sentence, len(rows)) for sentence in sentences), np.int64, len(sentences))
    unique, copies = list(rows), np.bincount(row, minlength=len(rows))
    vectors = np.empty((len(unique), encoder.embedding_dimension), dtype=np.float32)
    truncated, readers = np.zeros(len(unique), dtype=bool), encoder.readers(prefix)
    with evaluating(encoder):
        for start in range(0, len(unique), CHUNK_SEQUENCES):
            chunk = slice(start, start + CHUNK_SEQUENCES)
            parts = []
            for reader, own in readers:
                tokenized = tokenize(reader, [own.text + sentence for sentence in unique[chunk]])
                truncated[chunk] |= tokenized.truncated
                done = progress if reader is readers[-1][0] else None
                parts.append(embed_tokens(reader, tokenized, batch_size, copies[chunk], done, own.skip))
            with torch.inference_mode():
                joined = encoder.join(parts)
                joined = scale_to_length_1(joined, dim=-1) if normalize else joined
            vectors[chunk] = joined.cpu().numpy()  # the only synchronisation with the device
    return (vectors if len(unique) == len(sentences) else vectors[row]), int(copies[truncated].sum())


def tokenize(encoder: nn.Module, sentences: list[str]) -> TokenizedSentences:
    """Tokenises all sentences in one call, which the tokenizer spreads over the cores, and sorts them by length."""
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    ids = run_tokenizer(encoder.tokenizer, sentences, **options)["input_ids"]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    truncated = lengths > encoder.max_length
    too_long = truncated.nonzero()[0]
    if len(too_long):
        options |= {"truncation": True, "max_length": encoder.max_length}
        cut = run_tokenizer(encoder.tokenizer, [sentences[i] for i in too_long], **options)["input_ids"]
        for position, kept in zip(too_long, cut, strict=True):
            ids[position], lengths[position] = kept, len(kept)
    order = np.argsort(-lengths, kind="stable")
    flat = np.fromiter(chain.from_iterable(ids[i] for i in order), np.int64, int(lengths.sum()))
    return TokenizedSentences(flat, lengths[order], order, truncated)


@torch.inference_mode()
def embed_tokens(
    encoder: nn.Module,
    tokenized: TokenizedSentences,
    batch_size: int,
    copies: np.ndarray,
    progress: Callable[[int], None] | None,
    skip: int = 0,
) -> torch.Tensor:
    """Runs the encoder over tokenised sentences; shape `(sentences, hidden)`, float32, in the order they were given."""
    device, lengths, order = encoder.backbone.device, tokenized.lengths, tokenized.order
    some = np.count_nonzero(lengths)  # sentences without tokens come last and keep vectors of zeros
    vectors = torch.zeros((len(lengths), encoder.embedding_dimension), device=device)
    ends = lengths.cumsum()
    with onednn_linears(encoder, reorder=len(tokenized.ids) >= REORDER_TOKENS):
        for start, stop in device_batches(lengths[:some], batch_size, device):
            mask = np.arange(lengths[start]) < lengths[start:stop, None]  # (sentences, longest)
            ids = np.full(mask.shape, encoder.tokenizer.pad_token_id)
            ids[mask] = tokenized.ids[ends[start] - lengths[start] : ends[stop - 1]]
            inputs = [torch.from_numpy(array).to(device) for array in (ids, mask.astype(np.int64))]
            skipped = {"skip": torch.full((stop - start,), skip, device=device)} if skip else {}
            vectors[start:stop] = encoder(*inputs, **skipped)
            if progress is not None:
                progress(int(copies[order[start:stop]].sum()))
    if progress is not None:
        progress(int(copies[order[some:]].sum()))
    restored = torch.empty_like(vectors)
    restored[torch.from_numpy(order).to(device)] = vectors
    return restored


def quantized(encoder: nn.Module) -> nn.Module:
    """Returns a copy of an encoder for the CPU with int8 linear layers: weights by output channel, inputs as they come.

    Raises:
        InputError: the encoder is on another device.
    """
    if encoder.device.type != "cpu":
        raise InputError(f"int8 is for the CPU, got an encoder on {encoder.device}. Use bfloat16 there.")
    scheme = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    with warnings.catch_warnings():  # int8 tensors are deprecated in PyTorch: pytorch/pytorch#184982
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ao.quantization.quantize_dynamic(deepcopy(encoder).eval(), scheme, inplace=True)
