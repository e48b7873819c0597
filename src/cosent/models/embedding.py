"""Bulk embedding of sentences, for `SentenceEncoder.encode`, the encode job and distillation."""

import warnings
from collections.abc import Callable, Collection, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize as scale_to_length_1

from cosent.compute.distributed import evaluating, gather_object, rank, run_tokenizer, world_size
from cosent.compute.onednn import onednn_linears
from cosent.compute.packed_backbone import LOOKUP
from cosent.data.collators import JoinedPairCollator
from cosent.data.pairs import NO_PREFIXES, Prefixes, tokenize_joined
from cosent.data.tokens import read_texts
from cosent.errors import InputError

Encoder = TypeVar("Encoder", bound=nn.Module)

CHUNK_SEQUENCES = 32768  # tokenised and sorted at a time, which limits the memory of token ids
BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}  # cpu: measured, activations stay in the cache; cuda: enough to fill one
SHOWN_CHARACTERS = 60  # characters of a text in a message
REORDER_TOKENS = 16384  # from this many tokens on, reordering the weights for oneDNN pays off


def as_texts(texts: str | Collection[str]) -> list[str]:
    """The texts of a public function as a list, also a single text; refuses anything but a sequence of strings."""
    texts = [texts] if isinstance(texts, str) else texts
    if isinstance(texts, Set | Mapping) or not isinstance(texts, Collection):
        raise InputError(f"Expected a list of sentences, got {type(texts).__name__}. Pass a list.")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise InputError(f"Expected sentences as strings, got {text!r} ({kind}) at position {position}.")
    return list(texts)


def check_pairs(sentences1: Collection[str], sentences2: Collection[str]) -> tuple[list[str], list[str]]:
    """Both columns of pairs as lists; refuses anything but two lists of equal length."""
    if isinstance(sentences1, str) != isinstance(sentences2, str):
        kinds = f"{type(sentences1).__name__} and {type(sentences2).__name__}"
        raise InputError(f"Expected two strings or two lists, got {kinds}. Pass the same kind.")
    first, second = as_texts(sentences1), as_texts(sentences2)
    if len(first) != len(second):
        raise InputError(f"Expected two lists of equal length, got {len(first)} and {len(second)} sentences.")
    return first, second


def check_finite(encoder: nn.Module, values: np.ndarray, again: Callable, *columns: list[str]) -> None:
    """Refuses vectors or scores `(rows, ...)` with NaN or inf, and names the texts of the row, one of each column.

    Args:
        again: computes rows from their columns; called for single rows, as NaN spreads to others of a packed row.
    """
    wrong = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if not len(wrong):
        return
    for row in wrong if len(values) > 1 else ():
        again(*([column[row]] for column in columns))
    texts = " and ".join(repr(column[wrong[0]][:SHOWN_CHARACTERS]) for column in columns)
    dtype, remedy = encoder.backbone.dtype, "Its weights are damaged: take another copy or checkpoint."
    if dtype != torch.float32:
        remedy = f"Its weights are {dtype}: load it in float32."
    raise InputError(f"The model returns nan or inf for {texts}. {remedy}")


def batch_tokens(device: torch.device) -> int:
    return BATCH_TOKENS["cpu" if device.type == "cpu" else "cuda"]


def batch_bounds(lengths: np.ndarray, batch_size: int, tokens: int) -> list[tuple[int, int]]:
    """Splits sequences, longest first, into batches of at most `batch_size` sequences and `tokens` with padding.

    `lengths` `(sequences,)` are descending; a sequence longer than `tokens` becomes its own batch.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    bounds, start = [], 0
    while start < len(lengths):
        stop = min(len(lengths), start + max(1, min(batch_size, tokens // int(lengths[start]))))
        bounds.append((start, stop))
        start = stop
    return bounds


@dataclass(frozen=True)
class SortedTokens:
    """Sentences as one flat array of token ids."""

    ids: np.ndarray  # int64 (tokens in all,), sentence after sentence, longest first
    lengths: np.ndarray  # (sentences,), tokens of each, descending
    order: np.ndarray  # (sentences,), the index of each among the given sentences
    truncated: np.ndarray  # (sentences,), by given sentence, whether it was cut to the encoder's `max_length`


def embed(
    encoder: nn.Module,
    sentences: list[str],
    batch_size: int = 512,
    normalize: bool = False,
    progress: Callable[[int], None] | None = None,
    prefix: str = "",
) -> tuple[np.ndarray, int]:
    """Embeds sentences in evaluation mode, each distinct one once, in batches of similar length.

    Args:
        encoder: an `SentenceEncoder`; its mode (train or eval) is restored.
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
    truncated = np.zeros(len(unique), dtype=bool)
    again = partial(embed, encoder, batch_size=1, normalize=normalize, progress=None, prefix=prefix)
    with evaluating(encoder):
        for start in range(0, len(unique), CHUNK_SEQUENCES):
            chunk = slice(start, start + CHUNK_SEQUENCES)
            texts = [prefix + sentence for sentence in unique[chunk]] if prefix else unique[chunk]
            if encoder.backbone.config.model_type == LOOKUP and encoder.pooling.mode == "mean":
                embedded, truncated[chunk] = embed_by_lookup(encoder, texts, copies[chunk], progress)
            else:
                tokens = sorted_tokens(encoder, texts)
                truncated[chunk] = tokens.truncated
                embedded = embed_tokens(encoder, tokens, batch_size, copies[chunk], progress)
            with torch.inference_mode():
                embedded = scale_to_length_1(embedded, dim=-1) if normalize else embedded
            vectors[chunk] = embedded.cpu().numpy()  # the only synchronisation with the device
            check_finite(encoder, vectors[chunk], again, unique[chunk])
    return (vectors if len(unique) == len(sentences) else vectors[row]), int(copies[truncated].sum())


@torch.inference_mode()
def embed_by_lookup(
    encoder: nn.Module, texts: list[str], copies: np.ndarray, progress: Callable[[int], None] | None
) -> tuple[torch.Tensor, np.ndarray]:
    """Vectors of shape `(texts, hidden)` by a `LookupModel`, and which texts were cut to `max_length`."""
    from cosent.models.lookup import Characters

    characters = Characters.of(encoder.tokenizer)
    ids, lengths, truncated = run_tokenizer(characters.encode, texts, max_length=encoder.max_length)
    vectors = encoder.after_pooling(encoder.backbone.means(ids, lengths))
    if progress is not None:
        progress(int(copies.sum()))
    return vectors, truncated


def sorted_tokens(encoder: nn.Module, sentences: list[str]) -> SortedTokens:
    """Tokenises sentences, on all cores, and sorts them by length."""
    ids, truncated = read_texts(encoder.tokenizer, sentences, encoder.max_length)
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    order = np.argsort(-lengths, kind="stable")
    flat = np.fromiter(chain.from_iterable(ids[i] for i in order), np.int64, int(lengths.sum()))
    return SortedTokens(flat, lengths[order], order, np.array(truncated, dtype=bool))


@torch.inference_mode()
def embed_tokens(
    encoder: nn.Module,
    tokens: SortedTokens,
    batch_size: int,
    copies: np.ndarray,
    progress: Callable[[int], None] | None,
) -> torch.Tensor:
    """Runs the encoder over tokenised sentences; shape `(sentences, hidden)`, float32, in the order they were given."""
    device, lengths, order = encoder.backbone.device, tokens.lengths, tokens.order
    some = np.count_nonzero(lengths)  # sentences without tokens come last and keep vectors of zeros
    vectors = torch.zeros((len(lengths), encoder.embedding_dimension), device=device)
    ends = lengths.cumsum()
    with onednn_linears(encoder, reorder=len(tokens.ids) >= REORDER_TOKENS):
        for start, stop in batch_bounds(lengths[:some], batch_size, batch_tokens(device)):
            mask = np.arange(lengths[start]) < lengths[start:stop, None]  # (sentences, longest)
            ids = np.full(mask.shape, encoder.tokenizer.pad_token_id)
            ids[mask] = tokens.ids[ends[start] - lengths[start] : ends[stop - 1]]
            inputs = [torch.from_numpy(array).to(device) for array in (ids, mask.astype(np.int64))]
            vectors[start:stop] = encoder(*inputs)
            if progress is not None:
                progress(int(copies[order[start:stop]].sum()))
    if progress is not None:
        progress(int(copies[order[some:]].sum()))
    restored = torch.empty_like(vectors)
    restored[torch.from_numpy(order).to(device)] = vectors
    return restored


def quantized(encoder: Encoder) -> Encoder:
    """A copy of an encoder for the CPU with int8 linear layers: weights by output channel, inputs as they come."""
    if encoder.device.type != "cpu":
        raise InputError(f"int8 is for the CPU, got an encoder on {encoder.device}. Use bfloat16 there.")
    scheme = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    with warnings.catch_warnings():  # int8 tensors are deprecated in PyTorch: pytorch/pytorch#184982
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ao.quantization.quantize_dynamic(deepcopy(encoder).eval(), scheme, inplace=True)


def score_pairs(
    encoder: nn.Module,
    sentences1: list[str],
    sentences2: list[str],
    batch_size: int,
    progress: Callable[[int], None] | None = None,
    prefixes: Prefixes = NO_PREFIXES,
) -> tuple[np.ndarray, int]:
    """Scores pairs in evaluation mode, in batches of similar length; the arguments are those of `embed`.

    Returns float32 scores of shape `(pairs,)` in the order given, and how many pairs were cut to `max_length`.
    """
    scores, truncated = np.empty(len(sentences1), dtype=np.float32), 0
    again = partial(score_pairs, encoder, batch_size=1, prefixes=prefixes)
    with evaluating(encoder):
        for start in range(0, len(scores), CHUNK_SEQUENCES):
            chunk = slice(start, start + CHUNK_SEQUENCES)
            columns = {"sentence1": sentences1[chunk], "sentence2": sentences2[chunk]}
            pairs = tokenize_joined(columns, encoder.tokenizer, encoder.max_length, prefixes)
            empty = [row for row, ids in enumerate(pairs["input_ids"], start) if not ids]
            if empty:
                raise InputError(f"Expected a token in every pair, got none at position {empty[0]}. Drop it.")
            scores[chunk] = score_tokens(encoder, pairs, batch_size, progress)
            check_finite(encoder, scores[chunk], again, *columns.values())
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
        for start, stop in batch_bounds(lengths[order], batch_size, batch_tokens(device)):
            batch = collate([(ids[row], first_tokens[row], {}) for row in order[start:stop]])
            scores[start:stop] = encoder(**{name: tensor.to(device) for name, tensor in batch.items()})["scores"]
            if progress is not None:
                progress(stop - start)
    restored = np.empty(len(ids), dtype=np.float32)
    restored[order] = scores.cpu().numpy()  # the only synchronisation with the device
    return restored


def score(model, rows, prompts: tuple[str, str]) -> np.ndarray:
    """Similarity of every pair by a model of either tower, float32 of shape `(pairs,)`; processes share them out."""

    def own(part: slice) -> np.ndarray:
        sentences = (rows[name][:][part] for name in ("sentence1", "sentence2"))
        return model.similarity(*sentences, show_progress_bar=rank() == 0, prompt=prompts)

    return shared(own, len(rows["sentence1"]))


def embed_shared(model, texts: list[str], prompt: str) -> np.ndarray:
    """Vectors of length 1 of sentences behind a prompt, float32 of shape `(texts, width)`; processes share them out."""
    options = {"normalize_embeddings": True, "show_progress_bar": rank() == 0, "prompt": prompt}
    return shared(lambda part: model.encode(texts[part], **options), len(texts))


def shared(compute: Callable[[slice], np.ndarray], rows: int) -> np.ndarray:
    """What `compute` returns for all rows, float32 of shape `(rows, ...)`; processes share them out."""
    parts = gather_object(compute(slice(rank(), None, world_size())))
    every = np.empty((rows, *parts[0].shape[1:]), dtype=np.float32)
    for number, part in enumerate(parts):
        every[number :: len(parts)] = part
    return every
