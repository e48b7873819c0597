"""Modules after pooling, from sentence vector to sentence vector: those of sentence-transformers, by its names."""

import inspect
from typing import Any

import torch
from torch import nn

from cosent.compute.contexts import seeded
from cosent.errors import InputError

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
NOT_OF_ONE_VECTOR = ("GLU", "MultiheadAttention", "Softmax2d", "Threshold")
ACTIVATIONS = ("Identity", *(name for name in nn.modules.activation.__all__ if name not in NOT_OF_ONE_VECTOR))
READS_AND_WRITES = ("module_input_name", "module_output_name")


class Dense(nn.Module):
    """Linear layer with an activation: `activation(W x + b)`, and with `use_residual` plus `x` (or a projection of it).

    Args:
        in_features, out_features: widths of the vectors before and after.
        activation_function: a class of `torch.nn` by its full name, e.g. `torch.nn.modules.linear.Identity`.
        seed: seed of fresh weights; the global random state is left alone.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation_function: str = TANH,
        use_residual: bool = False,
        seed: int = 42,
    ):
        super().__init__()
        with seeded(seed):
            self.linear = nn.Linear(in_features, out_features, bias=bias)
            if use_residual and in_features != out_features:
                self.residual = nn.Linear(in_features, out_features, bias=False)
        self.activation_function = getattr(nn, activation_function.rsplit(".", 1)[-1])()
        self.use_residual, self.named = use_residual, activation_function

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Maps vectors of shape `(sentences, in_features)` to `(sentences, out_features)`."""
        result = self.activation_function(self.linear(vectors))
        if not self.use_residual:
            return result
        return result + (vectors if self.linear.in_features == self.linear.out_features else self.residual(vectors))

    def config(self) -> dict[str, Any]:
        """`config.json` of the module, as of every module here."""
        linear = self.linear
        widths = {"in_features": linear.in_features, "out_features": linear.out_features}
        config = widths | {"bias": linear.bias is not None, "activation_function": self.named}
        return config | ({"use_residual": True} if self.use_residual else {})  # unknown before 5.7


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)

    def config(self) -> dict[str, Any]:
        return {}


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` of vectors of width `dimension`."""

    def __init__(self, dimension: int):
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.norm(vectors)

    def config(self) -> dict[str, Any]:
        return {"dimension": self.norm.normalized_shape[0]}


class Dropout(nn.Module):
    """Dropout of vectors, in training only."""

    def __init__(self, dropout: float = 0.2):
        super().__init__()
        self.dropout_layer = nn.Dropout(dropout)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.dropout_layer(vectors)

    def config(self) -> dict[str, Any]:
        return {"dropout": self.dropout_layer.p}


TAIL = {kind.__name__: kind for kind in (Dense, Normalize, LayerNorm, Dropout)}
WITHOUT_WEIGHTS = ("Normalize", "Dropout")


def build(kind: str, config: dict[str, Any], file: str, width: int) -> nn.Module:
    """Builds a module with fresh weights from its config.

    Args:
        kind: name of its class.
        config: content of its `config.json`, by sentence-transformers or us.
        file: name of that file, for messages.
        width: width of the vectors that it reads.

    Raises:
        InputError: another module, a key, a width or an activation that is not computed here.
    """
    if kind not in TAIL:
        raise InputError(
            f"{file} belongs to the module {kind}, and only {', '.join(TAIL)} are computed here: its vectors would be "
            "others. Remove it from modules.json, or take another model."
        )
    known = {name: value for name, value in config.items()
             if name not in READS_AND_WRITES or value not in (None, "sentence_embedding")}  # fmt: skip
    try:
        inspect.signature(TAIL[kind]).bind(**known)
    except TypeError as error:
        raise InputError(
            f"{file} describes a {kind} by {known}, which is not computed here ({error}): its vectors would be others. "
            "Correct the file, or start from another model."
        ) from error
    reads = known.get("in_features", known.get("dimension", width))
    if reads != width:
        raise InputError(
            f"{file} describes a {kind} of vectors of width {reads}, but those before it have {width}: nothing could "
            "be computed. Correct the file, or start from another model."
        )
    named = str(known.get("activation_function", TANH))
    if not named.startswith("torch.nn.") or named.rsplit(".", 1)[-1] not in ACTIVATIONS:
        raise InputError(
            f"{file} names the activation {named}, which is none of torch.nn ({', '.join(ACTIVATIONS)}): another one "
            "would give other vectors. Correct the file, or start from another model."
        )
    return TAIL[kind](**known)


def embedding_dimension(width: int, tail: nn.Sequential) -> int:
    """Width of the vectors that a tail makes out of vectors of a `width`."""
    return next((module.linear.out_features for module in reversed(tail) if isinstance(module, Dense)), width)
