"""Packing: several short sentences in one row of tokens, without padding and with unchanged results.

The sentences of a batch are laid into rows first-fit by length. A block-diagonal mask keeps them apart, positions
restart at every sentence, and an index reads each sentence back, so that the pooling or head after the backbone sees
the padded shape. For lengths 3, 2 and 2 in rows of 4 tokens:

    input_ids [[7, 8, 9],      packed [[7, 8, 9, 0],    segments [[1, 1, 1, 0],    positions [[0, 1, 2, 0],
               [5, 6, 0],              [5, 6, 3, 4]]              [2, 2, 3, 3]]               [0, 1, 0, 1]]
               [3, 4, 0]]
    slots [[0, 1, 2],          the place of each token in the flattened rows; after the end of a sentence,
           [4, 5, 5],          its last token is repeated, which the attention mask hides from the pooling
           [6, 7, 7]]

A transformers model describes what its tokens see (all, those before, a window around them) by a function of two
places, and the function registered for its attention implementation draws the mask. The registered functions are
extended here: inside `sentences_apart`, two tokens must also belong to one sentence.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    AttentionMaskInterface,
    and_masks,
    packed_sequence_mask_function,
)

from cosent.errors import InputError, once

logger = logging.getLogger(__name__)

Count = TypeVar("Count", int, np.ndarray)
MIN_SAVING = 0.05  # of the FLOPs of the padded batch; below it, packing was measured to cost as much as it saves
WIDTH_STEP = 8  # tokens: exact widths would save another 1-2%, but GPU kernels want multiples of 8
MIN_WIDTH = 48  # tokens: if all sentences are shorter than this, rows of up to twice this width are tried
WIDEST_ROW = 1024  # tokens: only a sentence that is longer gets a wider row, since the mask grows with the square

DECODERS = ("gemma3_text", "gpt2", "llama", "mistral", "qwen2", "qwen3")
# First position of each architecture. Those not listed were not verified to be exact, and are padded.
POSITIONS = {
    **dict.fromkeys(("albert", "bert", "electra", "ernie", "megatron-bert", "distilbert"), "zero"),
    **dict.fromkeys(("eurobert", "gte", "jina_embeddings_v3", "modernbert", "nomic_bert"), "zero"),
    **dict.fromkeys(DECODERS, "zero"),
    **dict.fromkeys(("camembert", "roberta", "xlm-roberta", "data2vec-text", "xlm-roberta-xl"), "after_padding_id"),
    **dict.fromkeys(("mpnet", "roberta-prelayernorm"), "after_padding_id"),
    "roformer": "relative",
}
# Architectures that number positions from pad_token_id + 1, which leaves fewer positions for tokens.
NUMBERED_FROM_PADDING = (
    *(name for name, start in POSITIONS.items() if start == "after_padding_id"),
    *("longformer", "xmod"),
)
LOOKUP = "lookup"  # has no layers: a padded place costs next to nothing, so there is nothing to pack
NO_LIMIT = 2**20  # tokens, for architectures with relative positions


@dataclass(frozen=True)
class Plan:
    """Place of each sentence: its `row`, its `start` there, its `lengths` in tokens; arrays `(sentences,)`."""

    lengths: np.ndarray
    row: np.ndarray
    start: np.ndarray
    width: int

    @property
    def rows(self) -> int:
        return int(self.row.max()) + 1


@dataclass(frozen=True)
class Packed:
    """A packed batch.

    Args:
        tensors: the packed tensors by name, each of shape `(rows, width)`.
        segments: shape `(rows, width)`, the number of the sentence from 1, and 0 where a row has no token.
        slots: shape `(sentences, longest)`, the place of each token in the flattened rows.
    """

    tensors: dict[str, torch.Tensor]
    segments: torch.Tensor
    slots: torch.Tensor


def token_counts(attention_mask: torch.Tensor) -> np.ndarray:
    """Tokens of each sentence, shape `(sentences,)`: the only data that packing needs on the CPU."""
    mask = attention_mask.cpu().numpy()
    lengths = mask.sum(axis=1)
    if not ((np.arange(mask.shape[1]) < lengths[:, None]) == mask).all():
        raise InputError("Packing needs padding on the right. Set tokenizer.padding_side to right.")
    return lengths


def plan_rows(lengths: np.ndarray, width: int) -> Plan:
    """Assigns sentences of these lengths to rows of `width` tokens, longest first, each to the first with room."""
    lengths = np.asarray(lengths)
    if not (lengths.min() >= 1 and lengths.max() <= width):
        raise InputError(f"Packing needs sentences of 1 to {width} tokens, got {lengths.min()} to {lengths.max()}.")
    room = np.full(len(lengths), width)
    row, start = np.zeros(len(lengths), dtype=np.int64), np.zeros(len(lengths), dtype=np.int64)
    for sentence in np.argsort(-lengths, kind="stable"):
        first = np.argmax(room >= lengths[sentence])
        row[sentence], start[sentence] = first, width - room[first]
        room[first] -= lengths[sentence]
    return Plan(lengths, row, start, width)


def cheapest_plan(lengths: np.ndarray, hidden_size: int, max_width: int) -> Plan:
    """Plans rows of the cheapest width, up to `max_width` tokens: wider rows leave fewer places empty, but cost more.

    Widths are tried in the order of their lower bound (every row full), until no bound beats the best plan.
    """
    longest, total = int(lengths.max()), int(lengths.sum())
    narrowest = longest + -longest % WIDTH_STEP
    widest = max(narrowest, min(2 * max(longest, MIN_WIDTH), WIDEST_ROW))
    widths = np.minimum(np.arange(narrowest, widest + 1, WIDTH_STEP), max_width)
    bounds = flops(-(-total // widths), widths, hidden_size)
    best: Plan | None = None
    lowest = np.inf
    for choice in np.argsort(bounds, kind="stable"):
        if bounds[choice] >= lowest:
            break
        plan = plan_rows(lengths, int(widths[choice]))
        cost = flops(plan.rows, plan.width, hidden_size)
        if cost < lowest:
            best, lowest = plan, cost
    assert best is not None  # every cost is finite
    return best


def worthwhile_plan(lengths: np.ndarray, tokens: int, hidden_size: int, max_width: int) -> Plan | None:
    """The cheapest plan, or None if it saves less than `MIN_SAVING` of a batch padded to `tokens`."""
    longest = int(lengths.max())
    allowed = (1 - MIN_SAVING) * flops(len(lengths), tokens, hidden_size)
    if flops(1, longest, hidden_size) / longest * lengths.sum() > allowed:
        return None  # even rows without an empty place would not save enough
    plan = cheapest_plan(lengths, hidden_size, max_width)
    return plan if flops(plan.rows, plan.width, hidden_size) <= allowed else None


def flops(rows: Count, width: Count, hidden_size: int) -> Count:
    """Cost of a transformer layer, up to a constant: per token 24 hidden^2 (linear layers) + 4 width hidden."""
    return rows * width * (6 * hidden_size + width)


def pack(tensors: dict[str, torch.Tensor], plan: Plan, fill: dict[str, int] | None = None) -> Packed:
    """Lays tensors of shape `(sentences, tokens)`, padded on the right, into the rows of a plan.

    Args:
        fill: by name, the value where a row has no token; default 0. Labels of masked language modelling need -100.
    """
    fill = fill or {}
    example = next(iter(tensors.values()))
    lengths = torch.from_numpy(plan.lengths)[:, None]
    token = torch.arange(int(plan.lengths.max()))
    slots = torch.from_numpy(plan.row * plan.width + plan.start)[:, None] + torch.minimum(token, lengths - 1)
    sentence, token = (token < lengths).nonzero(as_tuple=True)
    target = slots[sentence, token].to(example.device)  # (tokens in all,)
    source = (sentence * example.shape[1] + token).to(example.device)  # (tokens in all,)

    def place(values: torch.Tensor, empty: int) -> torch.Tensor:
        rows = values.new_full((plan.rows * plan.width,), empty)
        return rows.index_copy_(0, target, values).view(plan.rows, plan.width)

    packed = {name: place(tensor.flatten()[source], fill.get(name, 0)) for name, tensor in tensors.items()}
    return Packed(packed, place((sentence + 1).to(example.device), 0), slots.to(example.device))


def unpack(hidden: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Reads `hidden` of shape `(rows, width, hidden)` back to `(sentences, longest, hidden)`; see `Packed.slots`."""
    return hidden.flatten(0, 1).index_select(0, slots.flatten()).unflatten(0, slots.shape)


IMPLEMENTATIONS = ("sdpa", "eager")  # of attention
current: ContextVar[torch.Tensor | None] = ContextVar("current", default=None)


@contextmanager
def sentences_apart(segments: torch.Tensor) -> Iterator[None]:
    """Hides the other sentences of a packed row from the models that this thread calls.

    Call them without an `attention_mask`. Empty places see each other, so that no softmax is empty.

    Args:
        segments: shape `(rows, width)`, the number of the sentence of each token, see `Packed`.
    """
    extend_masks()
    before = current.set(segments)
    try:
        yield
    finally:
        current.reset(before)


@cache
def extend_masks() -> None:
    """Extends the registered mask functions, once per process; outside `sentences_apart` they draw the usual masks."""
    for name in IMPLEMENTATIONS:
        AttentionMaskInterface.register(name, within_sentences(ALL_MASK_ATTENTION_FUNCTIONS[name]))


def within_sentences(draw: Callable) -> Callable:
    """Mask function that also hides the other sentences of a row."""

    @wraps(draw)
    def draw_apart(*args, **options):
        segments = current.get()
        if segments is not None:
            sees = and_masks(options["mask_function"], packed_sequence_mask_function(segments))
            # Not None where every token may see every other: such a mask would be left out.
            options |= {"mask_function": sees, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return draw(*args, **options)

    return draw_apart


def packed_forward(backbone: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Runs a backbone on packed rows where that is exact and cheaper, on the padded batch otherwise.

    Args:
        backbone: a transformers encoder without its head (`model.base_model` of a cross-encoder).
        inputs: `input_ids`, `attention_mask` and perhaps `token_type_ids`, each of shape `(sentences, tokens)`, padded
            on the right.

    Returns:
        `torch.Tensor` of shape `(sentences, longest, hidden)`. Where `attention_mask` is 0 its values are arbitrary; a
        head that reads [CLS] finds it at `[:, 0]`, as in a padded batch.
    """
    config: Any = backbone.config
    if config.model_type == LOOKUP:
        return plain_forward(backbone, inputs)
    obstacle = packing_obstacle(config)
    if obstacle is not None:
        once(
            logger.warning,
            f"Batches of {config.model_type} are padded, not packed: {obstacle}. With short sentences of mixed "
            "lengths, more than half of the computation is spent on padding.",
        )
        return plain_forward(backbone, inputs)
    lengths = token_counts(inputs["attention_mask"])
    max_width = max(config.max_position_embeddings, int(lengths.max()))
    plan = worthwhile_plan(lengths, inputs["input_ids"].shape[1], config.hidden_size, max_width)
    if plan is None:
        return plain_forward(backbone, inputs)
    per_token = {name: tensor for name, tensor in inputs.items() if name != "attention_mask"}
    if POSITIONS[config.model_type] != "relative":
        per_token["position_ids"] = position_ids(inputs["input_ids"], backbone)
    # Any token but padding, for which transformers would ask for the mask that packed rows do without.
    packed = pack(per_token, plan, fill={"input_ids": int(config.pad_token_id == 0)})
    with sentences_apart(packed.segments):
        hidden = plain_forward(backbone, packed.tensors)
    return unpack(hidden, packed.slots)


def plain_forward(backbone: nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Runs a backbone on rows as they are: its output, shape `(rows, tokens, hidden)`."""
    return backbone(**inputs).last_hidden_state


def position_ids(input_ids: torch.Tensor, backbone: Any) -> torch.Tensor:
    """Position ids that a backbone would assign to padded sentences, shape `(sentences, tokens)`."""
    if POSITIONS[backbone.config.model_type] == "zero":
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    padding = backbone.embeddings.padding_idx  # MPNet does not take it from its config
    filled = input_ids.ne(padding)
    return filled.cumsum(dim=1) * filled + padding


def max_tokens(config) -> int:
    """Length in tokens of the longest sentence that a backbone has positions for, special tokens included."""
    positions = getattr(config, "max_position_embeddings", None) or -1
    if positions < 0:
        return NO_LIMIT
    return positions - (config.pad_token_id + 1 if config.model_type in NUMBERED_FROM_PADDING else 0)


def packing_obstacle(config) -> str | None:
    """Reason why a backbone would compute other numbers on packed rows; None if it does not."""
    if config.model_type not in POSITIONS:
        return "this architecture was not verified"
    if config._attn_implementation not in IMPLEMENTATIONS:
        return f"attention implementation {config._attn_implementation} is none of {', '.join(IMPLEMENTATIONS)}"
    return None
