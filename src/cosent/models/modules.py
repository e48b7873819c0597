"""Modules after the backbone: pooling, dense layers, normalisation."""

from typing import Any

import torch
from torch import nn

from cosent.compute.state import seeded
from cosent.errors import InputError

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
POOLINGS, LINEAR_CLS = ("cls", "mean", "lasttoken"), "linear_cls"
CHOICES = (*POOLINGS, LINEAR_CLS)  # of --pooling: the last is `cls` and a Dense layer without activation
ACTIVATIONS = ("Identity", "Tanh", "GELU", "ReLU", "SiLU")


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
