"""Linear layers through oneDNN, up to twice as fast as through the BLAS of PyTorch.

PyTorch sends a float32 `nn.Linear` to MKL, which keeps to AVX2 on AMD processors. oneDNN, part of the same wheel, uses
AVX-512 there: 490 rather than 215 GFLOP/s on two cores of a Zen 5, for the shapes of 4 x 256 and 12 x 768 encoders.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from threading import Lock

import torch
from torch import nn
from torch.autograd.function import once_differentiable

# The operator is private to PyTorch, so another version may lack it: layers are then left as they are.
AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def bound_caches() -> None:
    """Limits oneDNN's cache of routines, one for each shape: packed batches hardly ever repeat one, and took 400 MiB.

    Read from the environment when the first routine is made.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "32")


@contextmanager
def onednn_linears(model: nn.Module, reorder: bool = False) -> Iterator[None]:
    """Runs the float32 CPU `nn.Linear` layers of a model, called by this thread, through oneDNN; without gradients.

    Subclasses, other dtypes and other devices are left as they are, and so is everything under autocast.

    Args:
        reorder: copy the weights into the layout of oneDNN first (0.1 s for 12 x 768): 10% faster from then on.
    """
    bound_caches()  # before the first reorder
    weights = {}
    if AVAILABLE and not torch.is_autocast_enabled("cpu"):
        layers = [layer for layer in model.modules() if type(layer) is nn.Linear and is_plain(layer.weight)]
        weights = {layer: layer.weight for layer in layers}
    if reorder:  # all at once: done by each layer when it first runs, writing is 6% slower
        weights = {layer: torch.ops.mkldnn._reorder_linear_weight(weight, None) for layer, weight in weights.items()}

    def run(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        weight = weights.get(layer)
        if weight is None or not is_plain(inputs) or torch.is_autocast_enabled("cpu"):  # which may begin inside
            return stock_forward(layer, inputs)
        return linear(inputs, weight, layer.bias)

    with run_linears(run):
        yield


@contextmanager
def trainable_onednn_linears() -> Iterator[None]:
    """As `onednn_linears`, with gradients, where that is faster; backward passes must run inside too.

    Each layer is checked whenever it runs: autocast begins, and FSDP gathers weights, after this context is entered.
    """
    with run_linears(trainable_linear) if AVAILABLE and beats_blas() else nullcontext():
        yield


@cache
def beats_blas() -> bool:
    """Whether MKL leaves AVX-512 unused here. By vendor, not by timing: the same seed must return the same bits."""
    cpuinfo = Path("/proc/cpuinfo")
    amd = cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8")
    return amd and torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.backends.mkl.is_available()


class OneDNNLinear(torch.autograd.Function):
    """Linear layer with all three matrix products (output and both gradients) by oneDNN.

    oneDNN reads transposed views as fast as copies laid out for it. Gradients of the 4 x 256 encoder are off from
    float64 by 2.8e-6 of their norm, MKL's by 2.6e-6. A layer without inputs comes here too: DeepSpeed adds up the
    gradients of all ranks in the order of each graph, so all need the same graph.
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
    if torch.is_autocast_enabled("cpu") or not is_plain(inputs) or not is_plain(layer.weight):
        return stock_forward(layer, inputs)
    return OneDNNLinear.apply(inputs, layer.weight, layer.bias)


def linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if inputs.numel() == 0:  # a student's head where no pair of a batch has a target
        return nn.functional.linear(inputs, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


def is_plain(tensor: torch.Tensor) -> bool:
    strided = type(tensor) in (torch.Tensor, nn.Parameter)  # quantised and sharded tensors have classes of their own
    return strided and tensor.device.type == "cpu" and tensor.dtype == torch.float32


stock_forward = nn.Linear.forward
linear_of_thread: ContextVar[Callable | None] = ContextVar("linear_of_thread", default=None)
lock, users = Lock(), 0


def forward(layer: nn.Linear, input: torch.Tensor) -> torch.Tensor:  # same parameter names as the original
    run = None if torch.compiler.is_compiling() else linear_of_thread.get()
    return stock_forward(layer, input) if run is None or type(layer) is not nn.Linear else run(layer, input)


@contextmanager
def run_linears(run: Callable[[nn.Linear, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Computes the `nn.Linear` layers that this thread calls with `run(layer, inputs)`; contexts may nest.

    The class is patched while any thread is inside, never a layer, which may be shared, copied and saved. A
    `TorchFunctionMode` would need no patch, but was 8% slower for a short sentence.
    """
    global users
    bound_caches()
    with lock:
        users += 1
        nn.Linear.forward = forward  # type: ignore[method-assign, assignment]
    before = linear_of_thread.set(run)
    try:
        yield
    finally:
        linear_of_thread.reset(before)
        with lock:
            users -= 1
            if not users:
                nn.Linear.forward = stock_forward  # type: ignore[method-assign]
