"""Linear layers on a CPU through oneDNN: same numbers, up to twice as fast as the BLAS behind PyTorch.

PyTorch sends a float32 `nn.Linear` to MKL, which keeps to AVX2 on AMD processors. oneDNN, part of the same wheel, uses
AVX-512 there: 490 instead of 215 GFLOP/s on two cores of a Zen 5, for the shapes of 4 x 256 and 12 x 768 encoders.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# The operator is private to PyTorch, so another version may not have it: layers then stay as they are.
AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def bound_caches() -> None:
    """Keeps oneDNN from caching a routine for every shape: packed batches hardly ever repeat one.

    Read from the environment when the first routine is made. With the default of 1,024 routines, training on long
    sentences took 400 MiB more and was no faster.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "32")


@contextmanager
def onednn_linears(model: nn.Module, reorder: bool = False) -> Iterator[None]:
    """Runs the float32 CPU `nn.Linear` layers of a model through oneDNN; without gradients.

    Layers of subclasses, of other types or on other devices stay as they are, and so does everything under autocast.

    Args:
        reorder: lay the weights out for oneDNN first. A copy of them (0.1 s for 12 x 768), 10% faster from then on.
    """
    forwards: dict[nn.Module, partial] = {}
    if AVAILABLE and not torch.is_autocast_enabled("cpu"):
        for layer in plain_linears(model):
            weight = layer.weight.detach()
            if is_plain(weight):
                weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if reorder else weight
                forwards[layer] = partial(linear, weight=weight, bias=layer.bias)
    with replaced(forwards):
        yield


@contextmanager
def trainable_onednn_linears(model: nn.Module) -> Iterator[None]:
    """As `onednn_linears`, with gradients, where that is faster; backward passes belong inside too.

    What a layer may do is looked up whenever it runs: autocast begins, and FSDP gathers weights, after the entry here.
    """
    use = AVAILABLE and beats_blas()
    with replaced({layer: partial(trainable_linear, layer) for layer in plain_linears(model)} if use else {}):
        yield


@cache
def beats_blas() -> bool:
    """Whether MKL wastes AVX-512 here. By vendor, not by stopwatch: the same seed has to give the same bits."""
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8")
    return amd and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()


class OneDNNLinear(torch.autograd.Function):
    """`inputs @ weight.T + bias`, all three products of it and its gradients through oneDNN.

    oneDNN reads transposed views as fast as copies laid out for it: nothing is transposed beforehand. It adds up longer
    runs than the 192 terms of MKL, at 1.4 to 2.2 times its rounding error in a product. Gradients of the 4 x 256
    encoder are off from float64 by 2.8e-6 of their norm, MKL's by 2.6e-6; blocks of 192 give 2.7e-6, 7% slower.
    """

    @staticmethod
    def forward(ctx, inputs, weight, bias):  # (..., in), (out, in), (out,) or None
        ctx.save_for_backward(inputs, weight)
        return linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):  # (..., out)
        inputs, weight = ctx.saved_tensors
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])  # (tokens, out)
        grad_inputs = linear(grad, weight.T) if needs_inputs else None
        grad_weight = linear(rows.T, inputs.reshape(-1, inputs.shape[-1]).T) if needs_weight else None
        return grad_inputs, grad_weight, rows.sum(dim=0) if needs_bias else None


def trainable_linear(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu") or inputs.numel() == 0 or not is_plain(inputs) or not is_plain(layer.weight):
        return nn.Linear.forward(layer, inputs)
    return OneDNNLinear.apply(inputs, layer.weight, layer.bias)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def plain_linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if type(module) is nn.Linear]


def is_plain(tensor: torch.Tensor) -> bool:
    strided = type(tensor) in (torch.Tensor, nn.Parameter)  # quantised and sharded tensors are classes of their own
    return strided and tensor.device.type == "cpu" and tensor.dtype == torch.float32


@contextmanager
def replaced(forwards: dict[nn.Module, partial]) -> Iterator[None]:
    """Gives modules another `forward`, which hides the method of their class; hooks run as ever, contexts may nest."""
    bound_caches()
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module, own in before.items():
            del module.forward
            if own is not None:
                module.forward = own
