"""Heads of sequence classifiers of any architecture: finding, running alone, and keeping in full precision."""

import re
import threading
from copy import copy

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from cosent.errors import InputError
from cosent.losses.checks import check_embeddings

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
    """Logits `(batch, classes)` of a classifier whose backbone gave the token vectors `(batch, longest, hidden)`.

    The classifier's own `forward` computes them, on a copy with all its modules but the backbone: every architecture's
    head reads what it always reads, whether [CLS], a mean or the last token.

    Args:
        inputs: what the backbone was called with, each of shape `(batch, tokens)`.
    """
    reader = copy(model)
    reader._modules = {**model._modules, model.base_model_prefix: KnownTokens(model.base_model, tokens)}
    return reader(**{name: tensor[:, : tokens.shape[1]] for name, tensor in inputs.items()}).logits


class KnownTokens(nn.Module):
    """In the place of a backbone whose token vectors have been computed: adds what its pooler makes of them."""

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


FEATURES = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


class SentenceBertHead(nn.Module):
    """Sentence-BERT's classifier: a linear layer on a concatenation of features of two sentence embeddings.

    Drawn as in the source (Glorot uniform, bias 0), from `seed`; the global random state is left alone.

    Args:
        features: any of `FEATURES`, in the order of concatenation.
        bias: true in Sentence-BERT and kexue.fm 8847; false in the joint model of 8541.

    Source: https://arxiv.org/abs/1908.10084, section 3; https://github.com/bojone/CoSENT, `sbert.py`.
    """

    def __init__(self, hidden_size: int, num_classes: int, features=("u", "v", "|u-v|"), bias=True, seed: int = 0):
        super().__init__()
        features = tuple(features)
        if not features or len(set(features)) < len(features) or not set(features) <= set(FEATURES):
            raise InputError(f"--features takes some of {' '.join(FEATURES)}, each once, got {' '.join(features)}.")
        self.features = features
        self.linear = nn.utils.skip_init(nn.Linear, hidden_size * len(features), num_classes, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight, generator=torch.Generator().manual_seed(seed))
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Logits `(batch, num_classes)` of embeddings `(batch, 2, hidden)`, in the dtype of the weights."""
        check_embeddings(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):  # bf16 logits of a pair are often equal
            u, v = embeddings.to(self.linear.weight.dtype).unbind(1)
            return self.linear(torch.cat([FEATURES[name](u, v) for name in self.features], dim=-1))
