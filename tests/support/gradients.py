"""A loss and its gradient, for the tests of this folder."""

import torch


def loss_and_gradient(loss, values: torch.Tensor, *rest) -> tuple[torch.Tensor, torch.Tensor]:
    values = values.clone().requires_grad_()
    result = loss(values, *rest)
    result.backward()
    return result.detach(), values.grad
