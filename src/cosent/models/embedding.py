"""Vectors and scores of many texts: in batches of similar length, shared by processes, in int8; checked input."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from threading import RLock
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize as scale_to_length_1

from cosent.compute.distributed import gather_object, rank, world_size
from cosent.compute.onednn import onednn_linears
from cosent.compute.packing import LOOKUP
from cosent.data.pairs import pad
from cosent.data.tokens import run_tokenizer, tokenize_texts
from cosent.errors import InputError

Encoder = TypeVar("Encoder", bound=nn.Module)

Progress = Callable[[int], object]  # called with the number of further sequences that are done

CHUNK_SEQUENCES = 32768  # tokenised and sorted at a time, which limits the memory of token ids
BATCH_TOKENS = {"cpu": 1024, "cuda": 32768}  # cpu: measured, activations stay in the cache; cuda: enough to fill one
SHOWN_CHARACTERS = 60  # characters of a text in a message
REORDER_TOKENS = 16384  # from this many tokens on, reordering the weights for oneDNN pays off
modes_lock = RLock()
evaluated: dict[nn.Module, tuple[int, list[nn.Module]]] = {}  # by model: threads inside, modules to put back in train


def ignore(count: int) -> None:
    """Reports no progress."""


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


def chunks(rows: int) -> Iterator[slice]:
    """Slices of at most `CHUNK_SEQUENCES` rows."""
    return (slice(start, start + CHUNK_SEQUENCES) for start in range(0, rows, CHUNK_SEQUENCES))


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


@torch.inference_mode()
def run_by_length(
    encoder: nn.Module,
    ids: list[list[int]],
    batch_size: int,
    run: Callable[[np.ndarray], torch.Tensor],
    shape: tuple[int, ...] = (),
    progress: Progress = ignore,
) -> torch.Tensor:
    """Runs sequences of token ids in batches of similar length: `(sequences, *shape)`, float32, in their order.

    A sequence without tokens, which some tokenizers can produce, gets zeros.

    Args:
        run: positions in `ids` -> outputs.
    """
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
    device = encoder.backbone.device
    outputs = torch.zeros((len(ids), *shape), device=device)
    tokens = BATCH_TOKENS["cpu" if device.type == "cpu" else "cuda"]
    with onednn_linears(encoder, reorder=lengths.sum() >= REORDER_TOKENS):
        for start, stop in batch_bounds(lengths[order], batch_size, tokens):
            outputs[torch.from_numpy(order[start:stop]).to(device)] = run(order[start:stop]).float()
            progress(stop - start)
    progress(len(ids) - len(order))
    return outputs


def embed(
    encoder: nn.Module,
    sentences: list[str],
    batch_size: int = 512,
    normalize: bool = False,
    progress: Progress = ignore,
    prefix: str = "",
) -> tuple[np.ndarray, int]:
    """Embeds sentences in evaluation mode, each distinct one once, in batches of similar length.

    Args:
        encoder: a `SentenceEncoder`; its mode (train or eval) is restored.
        batch_size: most sentences per forward pass, which also has at most `BATCH_TOKENS` tokens.
        normalize: scale every vector to length 1.
        progress: called with the number of further `sentences` that are embedded.
        prefix: the prompt in front of every sentence.

    Returns:
        float32 array of shape `(len(sentences), hidden)` in the order of `sentences`, and how many of them were cut.
    """
    rows: dict[str, int] = {}
    row = np.fromiter((rows.setdefault(sentence, len(rows)) for sentence in sentences), np.int64, len(sentences))
    unique, copies = list(rows), np.bincount(row, minlength=len(rows))
    vectors = np.empty((len(unique), encoder.embedding_dimension), dtype=np.float32)
    truncated = np.zeros(len(unique), dtype=bool)
    again = partial(embed, encoder, batch_size=1, normalize=normalize, prefix=prefix)
    by_lookup = encoder.backbone.config.model_type == LOOKUP and encoder.pooling.mode == "mean"
    with evaluating(encoder):
        for chunk in chunks(len(unique)):
            texts = [prefix + sentence for sentence in unique[chunk]]
            embedded, truncated[chunk] = (
                embed_by_lookup(encoder, texts, progress)
                if by_lookup
                else embed_by_backbone(encoder, texts, batch_size, progress)
            )
            with torch.inference_mode():
                embedded = scale_to_length_1(embedded, dim=-1) if normalize else embedded
            vectors[chunk] = embedded.cpu().numpy()  # the only synchronisation with the device
            check_finite(encoder, vectors[chunk], again, unique[chunk])
    progress(len(sentences) - len(unique))
    return (vectors if len(unique) == len(sentences) else vectors[row]), int(copies[truncated].sum())


def embed_by_backbone(
    encoder: nn.Module, texts: list[str], batch_size: int, progress: Progress
) -> tuple[torch.Tensor, list[bool]]:
    """Vectors `(texts, hidden)` by a backbone with layers, and which texts were cut to `max_length`."""
    ids, truncated = tokenize_texts(encoder.tokenizer, texts, encoder.max_length)

    def run(rows: np.ndarray) -> torch.Tensor:
        batch = pad([ids[row] for row in rows], encoder.tokenizer.pad_token_id)
        return encoder(**{name: tensor.to(encoder.backbone.device) for name, tensor in batch.items()})

    return run_by_length(encoder, ids, batch_size, run, (encoder.embedding_dimension,), progress), truncated


@torch.inference_mode()
def embed_by_lookup(encoder: nn.Module, texts: list[str], progress: Progress) -> tuple[torch.Tensor, np.ndarray]:
    """Vectors `(texts, hidden)` by a `LookupModel`, and which texts were cut to `max_length`."""
    from cosent.models.lookup import Characters

    characters = Characters.of(encoder.tokenizer)
    ids, lengths, truncated = run_tokenizer(characters.encode, texts, max_length=encoder.max_length)
    vectors = encoder.after_pooling(encoder.backbone.means(ids, lengths))
    progress(len(texts))
    return vectors, truncated


def quantized(encoder: Encoder) -> Encoder:
    """A copy of an encoder for the CPU with int8 linear layers: weights by output channel, inputs as they come."""
    if encoder.device.type != "cpu":
        raise InputError(f"int8 is for the CPU, got an encoder on {encoder.device}. Use bfloat16 there.")
    scheme = {nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
    with warnings.catch_warnings():  # int8 tensors are deprecated in PyTorch: pytorch/pytorch#184982
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        return torch.ao.quantization.quantize_dynamic(deepcopy(encoder).eval(), scheme, inplace=True)


def shared(compute: Callable[[slice], np.ndarray], rows: int) -> np.ndarray:
    """What `compute` returns for all rows, float32 of shape `(rows, ...)`; processes share them out."""
    parts = gather_object(compute(slice(rank(), None, world_size())))
    every = np.empty((rows, *parts[0].shape[1:]), dtype=np.float32)
    for number, part in enumerate(parts):
        every[number :: len(parts)] = part
    return every


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block in evaluation mode; the last of several threads inside restores the mode of every module."""
    with modes_lock:
        threads, trained = evaluated.get(model) or (0, [module for module in model.modules() if module.training])
        evaluated[model] = threads + 1, trained
        for module in trained:
            module.training = False
    try:
        yield
    finally:
        with modes_lock:
            threads, trained = evaluated.pop(model)
            if threads > 1:
                evaluated[model] = threads - 1, trained
            else:
                for module in trained:
                    module.training = True
