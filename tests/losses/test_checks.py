"""Input that a loss refuses."""

import math

import pytest
import torch

from cosent.losses.angle import angle_loss
from cosent.losses.classification import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)
from cosent.losses.cosent import cosent_loss
from cosent.losses.cosine import (
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
)

NAIVE = [cosine_linear_loss, cosine_squared_loss, cosine_floor_loss, cosine_mse_loss, cosine_hinge_loss]
ON_LOGITS = [binary_cross_entropy_loss, mse_loss]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cosent_loss(torch.rand(3), torch.tensor([1.0, math.nan, 0.0])), "nan in row 1"),
        (lambda: cosent_loss(torch.rand(3), torch.rand(3, 1)), r"\(3,\).*\(3, 1\)"),
        (lambda: cosent_loss(torch.rand(3, 1), torch.rand(3)), r"\(3, 1\)"),
        (lambda: cosent_loss(torch.arange(3), torch.rand(3)), "int64"),
        (lambda: angle_loss(torch.rand(3, 2, 5), torch.rand(3), torch.zeros(3, 2).long()), "hidden size.* 5"),
        (lambda: angle_loss(torch.rand(3, 4), torch.rand(3), torch.zeros(3, 2).long()), r"\(batch, 2, hidden\)"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0, 2])), "2 in row 1"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([-1, 0])), "-1 in row 0"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0.5, 0.0])), "0.5"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([math.nan, 0.0])), "nan"),
        (lambda: cross_entropy_loss(torch.rand(2), torch.tensor([1, 0])), r"\(batch, classes\)"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 5), torch.tensor([5])), "5"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 4), torch.tensor([1])), "5 classes"),
    ],
)
def test_bad_input_is_refused(call, words):
    """Fails if a mistake in data or code trains something else without a word."""
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("loss", [*NAIVE, *ON_LOGITS])
def test_mean_losses_refuse_labels_that_were_not_scaled(loss):
    """Fails if STS-B labels of 0..5 train a baseline that is worse than it should be."""
    with pytest.raises(ValueError, match=r"0\.\.1.* 5.0 in row 1 "):
        loss(torch.rand(2), torch.tensor([0.0, 5.0]))
    with pytest.raises(ValueError, match="got nan"):
        loss(torch.rand(2), torch.tensor([0.0, math.nan]))
    with pytest.raises(ValueError, match="empty batch"):
        loss(torch.rand(0), torch.rand(0))
