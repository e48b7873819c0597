"""What holds for every loss: NaN, half precision, gradients, and the table of names."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from cosent.losses import LOSSES
from cosent.losses.angle import angle_loss
from cosent.losses.classification import binary_cross_entropy_loss, cross_entropy_loss, mse_loss
from cosent.losses.cosent import cosent_loss
from cosent.losses.cosine import (
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
)
from tests.losses.gradients import loss_and_gradient

NAIVE = [cosine_linear_loss, cosine_squared_loss, cosine_floor_loss, cosine_mse_loss, cosine_hinge_loss]
ON_LOGITS = [binary_cross_entropy_loss, mse_loss]


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], ids=["ordered", "equal"])
def test_nan_scores_make_the_loss_nan(labels):
    """Fails if a model that has diverged trains on as if nothing had happened."""
    scores, labels = torch.tensor([0.1, math.nan, 0.2]), torch.tensor(labels)
    assert cosent_loss(scores, labels).isnan()
    assert all(loss(scores, labels).isnan() for loss in NAIVE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    """Fails if mixed-precision training loses the loss's digits, or fp16 overflows."""
    scores, labels = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype), torch.arange(64) % 2
    for loss in (cosent_loss, *NAIVE):
        result, gradient = loss_and_gradient(loss, scores, labels)
        expected, expected_gradient = loss_and_gradient(loss, scores.float(), labels)
        assert result == expected and result.dtype == torch.float32
        assert torch.equal(gradient, expected_gradient.to(dtype)) and gradient.norm() > 0
    embeddings = (torch.randn(8, 2, 6, generator=torch.Generator().manual_seed(0)) * 300).to(dtype)  # squares overflow
    targets = torch.arange(8) / 7, torch.arange(16).view(8, 2)
    assert angle_loss(embeddings, *targets) == angle_loss(embeddings.float(), *targets)
    logits = torch.randn(4, 3).to(dtype)
    assert cross_entropy_loss(logits, torch.tensor([0, 1, 2, 0])).dtype == torch.float32


def test_gradients_are_those_of_the_formulas():
    """Fails if backward disagrees with forward (finite differences in float64)."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.rand(12, generator=generator, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    labels = torch.randint(4, (12,), generator=generator) / 3
    for loss in (cosent_loss, *NAIVE, *ON_LOGITS):
        assert gradcheck(partial(loss, labels=labels), scores), loss


def test_table_of_losses_holds_its_promises():
    """Fails if a recipe's loss name runs another loss, or the trainer feeds it the wrong thing."""
    inputs = {"scores": torch.rand(6), "embeddings": torch.randn(6, 2, 4), "logits": torch.randn(6, 5)}
    other_names = {"sbert": "cross_entropy_loss", "sbert_joint": "joint_cross_entropy_loss"}
    other_names |= {"ce": "cross_entropy_loss", "ce3": "cross_entropy_loss", "bce": "binary_cross_entropy_loss"}
    other_names |= {"simcse": "infonce_loss", "sbert_regression": "cosine_squared_loss"}
    for name, loss in LOSSES.items():
        targets = [torch.tensor([0, 1, 0, 1, 1, 0])]
        targets += [torch.arange(12).view(6, 2)] if loss.compares_sentences else []
        targets += [inputs[loss.also_reads]] if loss.also_reads else []
        result, gradient = loss_and_gradient(loss.function, inputs[loss.reads], *targets)
        assert result.shape == () and gradient.norm() > 0, name
        assert loss.function.__name__ == other_names.get(name, f"{name}_loss")
    in_batch = ["angle", "cosent_in_batch", "cosent_infonce", "infonce", "simcse"]
    assert [name for name, loss in LOSSES.items() if loss.compares_sentences] == in_batch
    ranking = ["cosent", "ranknet", "hinge", "lambda_rank", "listnet", "listmle", "list_ce"]
    assert [name for name, loss in LOSSES.items() if loss.compares_pairs] == [*ranking, *in_batch]
