"""Run a transformers encoder on packed rows, without padding and with unchanged results."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cosent.compute.packing import IMPLEMENTATIONS, pack, sentences_apart, token_counts, unpack, worthwhile_plan
from cosent.errors import once

logger = logging.getLogger(__name__)

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
