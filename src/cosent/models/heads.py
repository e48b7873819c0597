"""Heads of sequence classifiers of any architecture: their names, and their logits in full precision."""

import re
from copy import copy

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions


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


@torch.compiler.disable  # dynamo cannot trace a copy of a module
def logits_of_tokens(model: nn.Module, tokens: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits `(batch, classes)` of a classifier from token vectors `(batch, longest, hidden)` of its backbone.

    The classifier's own `forward` computes them, on a copy with all its modules but the backbone: every architecture's
    head reads what it always reads, whether [CLS], a mean or the last token. Without autocast, in the dtype of the
    head's weights: logits in bfloat16 are often equal, and cannot be ranked.

    Args:
        inputs: what the backbone was called with, each of shape `(batch, tokens)`.
    """
    heads = classifier_heads(model).values()
    weight = next((weight for head in heads for weight in head.parameters()), tokens.float())  # int8 layers have none
    reader = copy(model)
    reader._modules = {
        **model._modules,
        model.base_model_prefix: KnownTokens(model.base_model, tokens.to(weight.dtype)),
    }
    with torch.autocast(tokens.device.type, enabled=False):
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
