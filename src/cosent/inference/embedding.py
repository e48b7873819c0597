"""Many sentences into vectors: what `SentenceEncoder.encode`, the encode job and distillation share."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize as scale_to_length_1

from cosent.compute.onednn import onednn_linears
from cosent.errors import InputError

CHUNK_SENTENCES = 32768  # tokenised and sorted at a time, which bounds the memory that token ids take
BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}  # cpu: measured, activations stay in the cache; cuda: enough to fill one
REORDER_TOKENS = 16384  # from here on laying out the weights anew for oneDNN pays for itself


@dataclass(frozen=True)
class TokenizedSentences:
    """Sentences as one flat array of token ids.

    Args:
        ids: shape `(tokens in all,)`, int64, sentence after sentence, longest first.
        lengths: shape `(sentences,)`, tokens of each, falling.
        order: shape `(sentences,)`, which of the given sentences each one is.
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
) -> tuple[np.ndarray, int]:
    """Embeds sentences in evaluation mode, each distinct one once, in batches of similar length.

    Args:
        encoder: a `SentenceEncoder`; its mode (train or eval) is as before afterwards.
        sentences: any number of sentences in any order.
        batch_size: the most sentences in a forward pass, which holds at most `BATCH_TOKENS` tokens too.
        normalize: scale every vector to length 1.
        progress: called after each batch with the number of `sentences` that it settled, repeated ones included.

    Returns:
        float32 array of shape `(len(sentences), hidden)` in the order of `sentences`, and how many of them were cut.

    Raises:
        InputError: an item is not a string.
    """
    check_sentences(sentences)
    rows: dict[str, int] = {}
    row = np.fromiter((rows.setdefault(sentence, len(rows)) for sentence in sentences), np.int64, len(sentences))
    unique, copies = list(rows), np.bincount(row, minlength=len(rows))
    vectors = np.empty((len(unique), encoder.pooling.hidden_size), dtype=np.float32)
    truncated = np.zeros(len(unique), dtype=bool)
    was_training = encoder.training
    encoder.eval()
    try:
        for start in range(0, len(unique), CHUNK_SENTENCES):
            chunk = slice(start, start + CHUNK_SENTENCES)
            tokenized = tokenize(encoder, unique[chunk])
            truncated[chunk] = tokenized.truncated
            vectors[chunk] = embed_tokens(encoder, tokenized, batch_size, normalize, copies[chunk], progress)
    finally:
        encoder.train(was_training)
    return (vectors if len(unique) == len(sentences) else vectors[row]), int(copies[truncated].sum())


def check_sentences(sentences: list[str]) -> None:
    if isinstance(sentences, str):
        raise InputError("encode expects a list of sentences, got one string: its characters would be encoded one by "
                         "one. Pass [sentence].")  # fmt: skip
    for position, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise InputError(
                f"encode expects sentences as strings, got {sentence!r} ({type(sentence).__name__}) at position "
                f"{position}. Drop it, or convert it to the text that it stands for."
            )


def tokenize(encoder: nn.Module, sentences: list[str]) -> TokenizedSentences:
    """Tokenises all sentences in one call, which the tokenizer spreads over the cores, and sorts them by length."""
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    ids = encoder.tokenizer(sentences, **options)["input_ids"]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    truncated = lengths > encoder.max_length
    too_long = truncated.nonzero()[0]
    if len(too_long):
        options |= {"truncation": True, "max_length": encoder.max_length}
        cut = encoder.tokenizer([sentences[i] for i in too_long], **options)["input_ids"]
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
    normalize: bool,
    copies: np.ndarray,
    progress: Callable[[int], None] | None,
) -> np.ndarray:
    """Runs the encoder over tokenised sentences; shape `(sentences, hidden)`, float32, in the order they were given."""
    device, lengths, order = encoder.backbone.device, tokenized.lengths, tokenized.order
    vectors = torch.empty((len(lengths), encoder.pooling.hidden_size), device=device)
    ends = lengths.cumsum()
    with onednn_linears(encoder, reorder=len(tokenized.ids) >= REORDER_TOKENS):
        for start, stop in batch_bounds(lengths, batch_size, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"])):
            mask = np.arange(lengths[start]) < lengths[start:stop, None]  # (sentences, longest)
            ids = np.full(mask.shape, encoder.tokenizer.pad_token_id)
            ids[mask] = tokenized.ids[ends[start] - lengths[start] : ends[stop - 1]]
            batch = encoder(torch.from_numpy(ids).to(device), torch.from_numpy(mask.astype(np.int64)).to(device))
            vectors[start:stop] = scale_to_length_1(batch.float(), dim=-1) if normalize else batch
            if progress is not None:
                progress(int(copies[order[start:stop]].sum()))
    restored = np.empty(vectors.shape, dtype=np.float32)
    restored[order] = vectors.cpu().numpy()  # the one wait for the device
    return restored


def batch_bounds(lengths: np.ndarray, batch_size: int, tokens: int) -> list[tuple[int, int]]:
    """Splits sentences, longest first, into batches of at most `batch_size` sentences and `tokens` with padding.

    A sentence that is longer than `tokens` is a batch of its own.
    """
    bounds, start = [], 0
    while start < len(lengths):
        stop = min(len(lengths), start + max(1, min(batch_size, tokens // int(lengths[start]))))
        bounds.append((start, stop))
        start = stop
    return bounds


def quantized(encoder: nn.Module) -> nn.Module:
    """Returns a copy of an encoder for the CPU with int8 linear layers: weights by output channel, inputs as they come.

    Raises:
        InputError: the encoder is on another device.
    """
    if encoder.backbone.device.type != "cpu":
        raise InputError(f"int8 is for the CPU, got an encoder on {encoder.backbone.device}. Use bfloat16 there.")
    scheme = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    with warnings.catch_warnings():  # int8 tensors are to leave PyTorch some day: pytorch/pytorch#184982
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ao.quantization.quantize_dynamic(deepcopy(encoder).eval(), scheme, inplace=True)
