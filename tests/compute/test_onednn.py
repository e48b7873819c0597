"""Linear layers through oneDNN: outputs and gradients of stock PyTorch, only where and while they are asked for."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from cosent.compute import onednn
from cosent.compute.onednn import onednn_linears, trainable_onednn_linears

pytestmark = pytest.mark.skipif(not onednn.AVAILABLE, reason="this PyTorch has no oneDNN operator")


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Takes the oneDNN path on every processor; the list grows with every product of it, forward and backward."""
    counted, linear = [], onednn.linear
    monkeypatch.setattr(onednn, "beats_blas", lambda: True)
    monkeypatch.setattr(onednn, "linear", lambda *args, **kwargs: counted.append(1) or linear(*args, **kwargs))
    return counted


def run(layer: nn.Module, inputs: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Output and gradients (inputs, then parameters) of a layer."""
    layer, inputs = copy.deepcopy(layer), inputs.detach().requires_grad_()
    output = layer(inputs)
    return [output.detach(), *torch.autograd.grad(output, [inputs, *layer.parameters()], grad)]


def rms(errors: torch.Tensor) -> float:
    return errors.square().mean().sqrt().item()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(512,), (7, 512), (3, 7, 512), (40, 25, 512), (0, 512)])
@pytest.mark.parametrize("layout", ["contiguous", "expanded", "transposed"])
def test_gradients_are_those_of_stock_but_for_rounding(calls, bias, shape, layout):
    """Fails if training on an AMD processor follows other gradients than elsewhere.

    MKL adds up blocks of 192 terms, oneDNN longer runs: 1.4 to 1.7 times its rounding error for these shapes
    on an AMD EPYC, 3.6 times on an Intel Xeon.
    """
    torch.manual_seed(0)
    layer, inputs = nn.Linear(512, 96, bias=bias), torch.randn(shape)
    grad = torch.randn(*shape[:-1], 96)
    if layout == "expanded":
        grad = torch.randn(96).expand(*shape[:-1], 96)  # what a sum or a mean over tokens passes down
    if layout == "transposed" and len(shape) > 1:
        grad = torch.randn(96, *shape[:-1]).movedim(0, -1)
    exact = run(layer.double(), inputs.double(), grad.double())
    stock = run(layer.float(), inputs, grad)
    with trainable_onednn_linears():
        ours = run(layer, inputs, grad)
    assert len(calls) == 3, "another graph without inputs: DeepSpeed adds up gradients in the order of each rank's"
    for expected, theirs, mine in zip(exact, stock, ours, strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.is_contiguous()
        if mine.numel():
            assert rms(mine - expected) <= 5 * rms(theirs - expected)
            torch.testing.assert_close(mine, theirs, atol=3e-4, rtol=0)  # sums over 1000 tokens reach 100


def test_a_frozen_embedding_below_and_a_layer_used_twice(calls):
    """Fails if the first layer computes a gradient that nobody needs, a shared layer loses half of its own, or frozen
    weights pay for a gradient or stop those below."""
    torch.manual_seed(0)
    table, layer = nn.Embedding(10, 16), nn.Linear(16, 16)
    table.weight.requires_grad_(False)

    def grads():
        layer.zero_grad()
        layer(layer(table(torch.arange(10)))).square().sum().backward()
        return [parameter.grad.clone() for parameter in layer.parameters()]

    expected = grads()
    with trainable_onednn_linears():
        torch.testing.assert_close(grads(), expected, atol=1e-5, rtol=1e-5)
    assert len(calls) == 2 + 3, "two outputs, two gradients of the weight, one of the inputs"
    calls.clear()
    inputs, frozen = torch.randn(3, 16, requires_grad=True), layer.requires_grad_(False)
    with trainable_onednn_linears():
        frozen(inputs).sum().backward()
    torch.testing.assert_close(inputs.grad, layer.weight.sum(0).expand(3, 16))
    assert len(calls) == 2


def test_caches_are_bounded_before_the_first_routine(monkeypatch):
    done, linear = [], nn.Linear(2, 2)
    monkeypatch.setattr(onednn, "AVAILABLE", True)
    monkeypatch.setattr(onednn, "bound_caches", lambda: done.append("bound"))
    reorder = lambda weight, batch: done.append("reorder") or weight  # noqa: E731
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", reorder, raising=False)
    with onednn_linears(linear, reorder=True):
        assert done[:2] == ["bound", "reorder"]


def test_others_keep_their_own_products(calls):
    """Fails if autocast trains in float32, a float64 model in float32, or a subclass loses what it adds."""

    class Doubled(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    layer, doubled = nn.Linear(8, 8), Doubled(8, 8)
    with trainable_onednn_linears():
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(torch.ones(2, 8)).dtype == torch.bfloat16
        assert torch.equal(doubled(torch.ones(2, 8)), 2 * nn.Linear.forward(doubled, torch.ones(2, 8)))
        assert layer.double()(torch.ones(2, 8).double()).dtype == torch.float64
        with pytest.raises(RuntimeError, match="dtype"):
            layer(torch.ones(2, 8))
    assert not calls


def test_without_the_operator_or_the_need_nothing_changes(calls, monkeypatch):
    """Fails if another PyTorch version or another processor does not train."""
    for name, value in (("beats_blas", lambda: False), ("AVAILABLE", False)):
        monkeypatch.setattr(onednn, name, value)
        with trainable_onednn_linears():
            assert nn.Linear.forward is onednn.stock_forward
            nn.Linear(8, 8)(torch.ones(2, 8)).sum().backward()
    layer = nn.Linear(8, 8)
    with onednn_linears(layer), torch.inference_mode():
        layer(torch.ones(2, 8))
    assert not calls


def test_threads_keep_their_own_products_and_leave_in_any_order(calls):
    """Fails if one thread's encoding turns another's training off its gradients, or the first thread that is done takes
    the fast layers from the others, or leaves them behind."""
    layer, inputs = nn.Linear(4, 4), torch.ones(1, 4)
    with onednn_linears(layer), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: layer(inputs).sum().backward()).result()
    assert not calls and layer.weight.grad is not None
    first, second = onednn_linears(layer), onednn_linears(layer)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, torch.no_grad():
        for pool, context in ((one, first), (two, second)):
            pool.submit(context.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        two.submit(layer, inputs).result()
        assert calls, "the second thread still is inside"
        two.submit(second.__exit__, None, None, None).result()
    assert nn.Linear.forward is onednn.stock_forward
