"""Losses on logits against values derived on paper."""

import math

import pytest
import torch

from cosent.losses.classification import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)
from tests.losses.gradients import loss_and_gradient


def test_cross_entropy_on_paper():
    """Logits (0, log 3) with class 1: softmax 3/4; (0, 0, 0) style ties cost log of the classes. Labels may be floats,
    as prepared corpora store them. If this fails, Sentence-BERT learns other classes."""
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert cross_entropy_loss(logits, torch.tensor([1.0, 0.0])).item() == pytest.approx(expected)
    assert cross_entropy_loss(logits, torch.tensor([True, False])).item() == pytest.approx(expected)


def test_losses_on_one_logit_on_paper():
    """Logits log 3, 0, 2 with t = 1, 0, 0.5: a sigmoid of 3/4 costs log 4/3, one of 1/2 log 2, a soft target its mean.
    If this fails, a cross-encoder of one logit learns something else than its recipe says."""
    scores, labels = torch.tensor([math.log(3.0), 0.0, 2.0]), torch.tensor([1.0, 0.0, 0.5])
    loss, gradient = loss_and_gradient(binary_cross_entropy_loss, scores, labels)
    soft = math.log(1 + math.exp(2)) - 0.5 * 2
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2) + soft) / 3)
    assert (3 * gradient).tolist() == pytest.approx([-1 / 4, 1 / 2, 1 / (1 + math.exp(-2)) - 0.5])
    loss, gradient = loss_and_gradient(mse_loss, torch.tensor([0.8, 3.0]), torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx((0.04 + 6.25) / 2)
    assert (2 * gradient).tolist() == pytest.approx([-0.4, 5.0])


def test_joint_cross_entropy_keeps_the_tasks_apart():
    """Equal logits: a similarity row costs log 2, an NLI row log 3; a row gives no gradient to the other task.
    If this fails, NLI classes compete with "similar"."""
    loss, gradient = loss_and_gradient(joint_cross_entropy_loss, torch.zeros(2, 5), torch.tensor([1.0, 4.0]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(3)) / 2)
    expected = torch.tensor([[1 / 2, -1 / 2, 0, 0, 0], [0, 0, 1 / 3, 1 / 3, -2 / 3]]) / 2
    torch.testing.assert_close(gradient, expected)
