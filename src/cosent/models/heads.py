"""Heads of sequence classifiers of any architecture: their names, their logits, and their precision."""

import re
import threading
from copy import copy

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

_local = threading.local()  # contexts that this thread has entered and not left


def classifier_heads(model: nn.Module) -> dict[str, nn.Module]:
    """The modules between token vectors and logits of a sequence classifier, by name; LoRA trains them in full."""
    backbone = model.base_model
    heads = {name: module for name, module in model.named_children() if module is not backbone}
    pooler = getattr(backbone, "pooler", None)  # in BERT's family
    if pooler is not None:
        heads[f"{model.base_model_prefix}.pooler"] = pooler
    return {name: module for name, module in heads.items() if next(module.parameters(), None) is not None}


def patterns_of_heads(config) -> list[str]:
    """Patterns of the heads' names in a classifier, which a quantiser must leave alone: 4 bits cannot be trained."""
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    return [f"^{re.escape(name)}" for name in classifier_heads(model)]


def logits_of_tokens(model: nn.Module, tokens: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits `(batch, classes)` of a classifier from token vectors `(batch, longest, hidden)` of its backbone.

    The classifier's own `forward` computes them, on a copy with all its modules but the backbone: every architecture's
    head reads what it always reads, whether [CLS], a mean or the last token.

    Args:
        inputs: what the backbone was called with, each of shape `(batch, tokens)`.
    """
    reader = copy(model)
    reader._modules = {**model._modules, model.base_model_prefix: KnownTokens(model.base_model, tokens)}
    return reader(**{name: tensor[:, : tokens.shape[1]] for name, tensor in inputs.items()}).logits


class KnownTokens(nn.Module):
    """Stands in for a backbone: returns token vectors that were computed before, and their pooling."""

    def __init__(self, backbone: nn.Module, tokens: torch.Tensor):
        super().__init__()
        self.backbone, self.tokens = backbone, tokens

    def forward(self, *args, **kwargs) -> BaseModelOutputWithPoolingAndCrossAttentions:
        pooler, pooled = getattr(self.backbone, "pooler", None), None
        if pooler is not None and self.backbone.config.model_type == "albert":  # whose pooler is a bare linear layer
            pooled = self.backbone.pooler_activation(pooler(self.tokens[:, 0]))
        elif pooler is not None:
            pooled = pooler(self.tokens)
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=self.tokens, pooler_output=pooled)


def keep_in_full_precision(head: nn.Module) -> None:
    """Makes a head compute in its weights' dtype under autocast: bf16 logits are often equal, and cannot be ranked.

    Uses hooks, which are thread-safe and are kept by copies of the module.
    """
    head.register_forward_pre_hook(_leave_autocast)
    head.register_forward_hook(_return_to_autocast, always_call=True)


@torch.compiler.disable  # it cannot trace a context that one hook enters and another leaves
def _leave_autocast(head: nn.Module, inputs: tuple) -> tuple:
    weight = next(head.parameters(), torch.empty(0))  # int8 layers have none: they read float32, on the CPU
    context = torch.autocast(weight.device.type, enabled=False)
    context.__enter__()
    vars(_local).setdefault("entered", []).append(context)
    return tuple(
        value.to(weight.dtype) if torch.is_tensor(value) and value.is_floating_point() else value for value in inputs
    )


@torch.compiler.disable
def _return_to_autocast(head: nn.Module, inputs: tuple, output) -> None:
    _local.entered.pop().__exit__(None, None, None)
