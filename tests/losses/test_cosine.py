"""Losses on single cosines against values derived on paper."""

import pytest
import torch

from cosent.losses.cosine import (
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
)
from tests.losses.gradients import loss_and_gradient


@pytest.mark.parametrize(
    "loss, expected, expected_gradient",
    [
        (cosine_linear_loss, (0.2 + 1.5 + 0.5 * 1 + 0.5 * 1) / 3, (-1, 1, 0)),
        (cosine_squared_loss, (0.04 + 0.25 + 0.5 * 1 + 0) / 3, (-0.4, 1.0, -1.0)),
        (cosine_floor_loss, (0.2 + 0.7 + 0.5 * 1 + 0.5 * 0.7) / 3, (-1, 0, -0.5)),
        (cosine_mse_loss, (0.04 + 2.25 + 0) / 3, (-0.4, 3.0, 0)),
        (cosine_hinge_loss, (0.1 + 0.4 + 0.5 * 0.9 + 0) / 3, (-1, 1, -0.5)),
    ],
)
def test_naive_losses_on_paper(loss, expected, expected_gradient):
    """Cosines 0.8, 0.5, 0 with t = 1, 0, 0.5: the terms of each formula, row by row, divided by 3 rows.
    If this fails, a baseline of the paper is not the one it is called."""
    result, gradient = loss_and_gradient(loss, torch.tensor([0.8, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.5]))
    assert result.item() == pytest.approx(expected)
    assert (3 * gradient).tolist() == pytest.approx(expected_gradient, abs=1e-6)


def test_cosine_mse_differs_from_the_source_by_a_constant():
    """Fails if what the docstring says about graded labels is wrong."""
    c, t = torch.tensor([0.8, -0.3, 0.4]).double(), torch.tensor([1.0, 0.0, 0.25]).double()
    source, source_gradient = loss_and_gradient(lambda c: (t * (1 - c) ** 2 + (1 - t) * (1 + c) ** 2).mean(), c)
    loss, gradient = loss_and_gradient(cosine_mse_loss, c, t)
    assert (source - loss).item() == pytest.approx((4 * t * (1 - t)).mean().item())
    torch.testing.assert_close(gradient, source_gradient)
