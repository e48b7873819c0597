"""Modules after the backbone: pooling, dense layers, normalisation; Sentence-BERT's head and those of classifiers."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from cosent.errors import InputError
from cosent.losses.checks import check_embeddings

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
POOLINGS, LINEAR_CLS = ("cls", "mean", "lasttoken"), "linear_cls"
CHOICES = (*POOLINGS, LINEAR_CLS)  # of --pooling: the last is `cls` and a Dense layer without activation
ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "SiLU")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs a block with random numbers that depend only on `seed`; the global random state is restored."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # without the list, it warns about several devices
        torch.manual_seed(seed)
        yield


class Pooling(nn.Module):
    """Turns token vectors into one sentence vector; padding is ignored.

    Args:
        mode: `cls` or `lasttoken`, the first or the last token; or `mean` over all tokens, special ones included, as
            sentence-transformers does.
        hidden_size: width of the token vectors.
    """

    def __init__(self, mode: str, hidden_size: int):
        super().__init__()
        if mode not in POOLINGS:
            raise InputError(f"--pooling must be one of {', '.join(CHOICES)}, got {mode!r}.")
        self.mode, self.hidden_size = mode, hidden_size

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pools one sentence per row.

        Args:
            tokens (`torch.Tensor` of shape `(sentences, tokens, hidden)`): the backbone's output.
            mask (`torch.Tensor` of shape `(sentences, tokens)`): 1 for tokens, 0 for padding on the left or right.

        Returns:
            `torch.Tensor` of shape `(sentences, hidden)`.
        """
        if self.mode == "mean":
            weights = mask / mask.sum(dim=1, keepdim=True)  # (sentences, tokens)
            return (tokens * weights[..., None].to(tokens.dtype)).sum(dim=1)
        index = mask.int().argmax(dim=1)  # the first of equal ones
        if self.mode == "lasttoken":
            index = mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)
        return tokens[torch.arange(tokens.shape[0], device=tokens.device), index]


class Dense(nn.Module):
    """Linear layer with an activation: `activation(W x + b)`.

    Args:
        in_features, out_features: widths of the vectors before and after.
        activation_function: a class of `torch.nn` by its full name, e.g. `torch.nn.modules.linear.Identity`.
        seed: seed of fresh weights; the global random state is left alone.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, activation_function: str = TANH, seed: int = 42
    ):
        super().__init__()
        with seeded(seed):
            self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_function = getattr(nn, activation_function.rsplit(".", 1)[-1])()
        self.named = activation_function

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Maps vectors of shape `(sentences, in_features)` to `(sentences, out_features)`."""
        return self.activation_function(self.linear(vectors))

    def config(self) -> dict[str, Any]:
        """`config.json` of the module."""
        linear = self.linear
        widths = {"in_features": linear.in_features, "out_features": linear.out_features}
        return widths | {"bias": linear.bias is not None, "activation_function": self.named}


def projection(weight: torch.Tensor) -> Dense:
    """A `Dense` that multiplies vectors by `weight`, `(dim, width)`: every tool that reads folders applies it."""
    dense = Dense(weight.shape[1], weight.shape[0], bias=False, activation_function=IDENTITY)
    dense.linear.weight.data = weight
    return dense


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)

    def config(self) -> dict[str, Any]:
        return {}


class SentenceBertHead(nn.Module):
    """Sentence-BERT's classifier: a linear layer on `[u; v; |u - v|]` of two sentence embeddings.

    Drawn as in the source (Glorot uniform, bias 0), from `seed`; the global random state is left alone.

    Args:
        bias: true in Sentence-BERT and kexue.fm 8847; false in the joint model of 8541.

    Source: https://arxiv.org/abs/1908.10084, section 3; https://github.com/bojone/CoSENT, `sbert.py`.
    """

    def __init__(self, hidden_size: int, num_classes: int, bias=True, seed: int = 0):
        super().__init__()
        self.linear = nn.utils.skip_init(nn.Linear, 3 * hidden_size, num_classes, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight, generator=torch.Generator().manual_seed(seed))
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Logits `(batch, num_classes)` of embeddings `(batch, 2, hidden)`, in the dtype of the weights."""
        check_embeddings(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):  # bf16 logits of a pair are often equal
            u, v = embeddings.to(self.linear.weight.dtype).unbind(1)
            return self.linear(torch.cat((u, v, (u - v).abs()), dim=-1))


def classifier_heads(model: nn.Module) -> dict[str, nn.Module]:
    """The modules between token vectors and logits of a sequence classifier, by name; LoRA trains them in full."""
    backbone = model.base_model
    heads = {name: module for name, module in model.named_children() if module is not backbone}
    pooler = getattr(backbone, "pooler", None)  # in BERT's family
    if pooler is not None:
        heads[f"{model.base_model_prefix}.pooler"] = pooler
    return {name: module for name, module in heads.items() if next(module.parameters(), None) is not None}


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
