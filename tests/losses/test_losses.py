"""Losses on single pairs, and of students, on paper; and what holds for every loss."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from cosent.losses import LOSSES
from cosent.losses.angle import angle_loss
from cosent.losses.cosent import cosent_loss
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.losses.in_batch import cosent_in_batch_loss, cosent_infonce_loss, infonce_loss
from cosent.losses.pointwise import (
    binary_cross_entropy_loss,
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)
from tests.support.gradients import loss_and_gradient

IN_BATCH = [infonce_loss, cosent_in_batch_loss, cosent_infonce_loss, angle_loss]
NAIVE = [cosine_linear_loss, cosine_squared_loss, cosine_floor_loss, cosine_mse_loss, cosine_hinge_loss]
GROUPS = torch.zeros(3, 2).long()
ON_LOGITS = [binary_cross_entropy_loss, mse_loss]


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


def test_losses_of_a_student_by_hand():
    """Fails if a sentence competes with itself, its synonym is looked for elsewhere, the mean is over pairs instead of
    the matrix, lengths count, widths have to agree, or pairs are read across one another."""
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    # cosines: 1 with the synonym, 0 with both others
    assert synonym_loss(embeddings, 1.0).item() == pytest.approx(math.log(math.e + 2) - 1, rel=1e-6)
    assert synonym_loss(embeddings, 3.0).item() == pytest.approx(math.log(math.exp(3) + 2) - 3, rel=1e-5)
    swapped = synonym_loss(embeddings[[0, 2, 1, 3]], 1.0).item()
    assert swapped == pytest.approx(math.log(math.e + 2), rel=1e-6)
    with pytest.raises(ValueError, match="pairs of synonyms side by side, got 3"):
        synonym_loss(embeddings[:3])

    student = torch.tensor([[2.0, 0.0], [0.0, 5.0]], requires_grad=True)  # cosine 0
    teacher = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])  # cosine 0.6
    loss = similarity_matrix_loss(student, teacher)
    assert loss.item() == pytest.approx(100 / 4 * 2 * 0.36, rel=1e-6)
    loss.backward()
    # d loss / d c = 100 / 4 * 2 * 2 * (c - 0.6), d c / d v1 = v2 / |v1|
    assert student.grad[0].tolist() == pytest.approx([0.0, -60.0 / 2], abs=1e-4)
    with pytest.raises(ValueError, match="compares the same sentences, got 2"):
        similarity_matrix_loss(student, teacher[:1])
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # cosines 1 and 0
    scores = torch.tensor([-3.0, 40.0])
    expected = math.log1p(math.exp(20 * (1 - 0)))
    assert pair_ranking_loss(embeddings, scores).item() == pytest.approx(expected, rel=1e-6)


def in_batch_inputs(pairs: int = 8) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Embeddings in float64, and targets of which some groups are equal."""
    embeddings = torch.randn(pairs, 2, 6, generator=torch.Generator().manual_seed(0)).double()
    groups = torch.arange(2 * pairs).view(pairs, 2)
    groups[1] = groups[0]
    return embeddings, {"labels": torch.arange(pairs) % 2, "groups": groups}


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], ids=["ordered", "equal"])
def test_nan_scores_make_the_loss_nan(labels):
    """Fails if a model that has diverged trains on as if nothing had happened."""
    scores, labels = torch.tensor([0.1, math.nan, 0.2]), torch.tensor(labels)
    assert all(loss(scores, labels).isnan() for loss in (cosent_loss, *NAIVE))
    embeddings, targets = in_batch_inputs()
    embeddings[3, 1] = math.nan
    assert all(loss(embeddings, **targets).isnan() for loss in IN_BATCH)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    """Fails if mixed-precision training loses the loss's digits, or fp16 overflows."""
    scores, labels = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype), torch.arange(64) % 2
    embeddings, targets = in_batch_inputs()
    embeddings = (300 * embeddings).to(dtype)  # squares overflow
    cases = [(partial(loss, labels=labels), scores) for loss in (cosent_loss, *NAIVE)]
    cases += [(partial(loss, **targets), embeddings) for loss in IN_BATCH]
    for loss, values in cases:
        result, gradient = loss_and_gradient(loss, values)
        expected, expected_gradient = loss_and_gradient(loss, values.float())
        assert result == expected and result.dtype == torch.float32, loss
        assert torch.equal(gradient, expected_gradient.to(dtype)) and gradient.norm() > 0, loss
    logits = torch.randn(4, 3).to(dtype)
    assert cross_entropy_loss(logits, torch.tensor([0, 1, 2, 0])).dtype == torch.float32


def test_gradients_are_those_of_the_formulas():
    """Fails if backward disagrees with forward (finite differences in float64), or masked negatives leave NaN."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.rand(12, generator=generator, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    labels = torch.randint(4, (12,), generator=generator) / 3
    for loss in (cosent_loss, *NAIVE, *ON_LOGITS):
        assert gradcheck(partial(loss, labels=labels), scores), loss
    embeddings, targets = in_batch_inputs(6)
    for loss in IN_BATCH:
        assert gradcheck(partial(loss, **targets), embeddings.requires_grad_()), loss


def test_table_of_losses_holds_its_promises():
    """Fails if a recipe's loss name runs another loss, or the trainer feeds it the wrong thing."""
    inputs = {"scores": torch.rand(6), "embeddings": torch.randn(6, 2, 4), "logits": torch.randn(6, 5)}
    other_names = {"sbert": "cross_entropy_loss", "sbert_joint": "joint_cross_entropy_loss"}
    other_names |= {"ce": "cross_entropy_loss", "ce3": "cross_entropy_loss", "bce": "binary_cross_entropy_loss"}
    other_names |= {"simcse": "infonce_loss", "sbert_regression": "cosine_squared_loss"}
    for name, loss in LOSSES.items():
        targets = [torch.tensor([0, 1, 0, 1, 1, 0])]
        targets += [torch.arange(12).view(6, 2)] if loss.compares_sentences else []
        result, gradient = loss_and_gradient(loss.function, inputs[loss.inputs[0]], *targets)
        assert result.shape == () and gradient.norm() > 0, name
        assert loss.function.__name__ == other_names.get(name, f"{name}_loss")
    in_batch = ["cosent_in_batch", "cosent_infonce", "infonce", "simcse", "angle"]
    assert [name for name, loss in LOSSES.items() if loss.compares_sentences] == in_batch
    assert [name for name, loss in LOSSES.items() if loss.compares_pairs] == ["cosent", *in_batch]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cosent_loss(torch.rand(3), torch.tensor([1.0, math.nan, 0.0])), "nan in row 1"),
        (lambda: cosent_loss(torch.rand(3), torch.rand(3, 1)), r"\(3,\).*\(3, 1\)"),
        (lambda: cosent_loss(torch.rand(3, 1), torch.rand(3)), r"\(3, 1\)"),
        (lambda: cosent_loss(torch.arange(3), torch.rand(3)), "int64"),
        (lambda: angle_loss(torch.rand(3, 2, 5), torch.rand(3), GROUPS), "hidden size.* 5"),
        (lambda: angle_loss(torch.rand(3, 4), torch.rand(3), GROUPS), r"\(batch, 2, hidden\)"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0, 2])), "2 in row 1"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([-1, 0])), "-1 in row 0"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0.5, 0.0])), "0.5"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([math.nan, 0.0])), "nan"),
        (lambda: cross_entropy_loss(torch.rand(2), torch.tensor([1, 0])), r"\(batch, classes\)"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 5), torch.tensor([5])), "5"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 4), torch.tensor([1])), "5 classes"),
        *((lambda f=f: f(torch.rand(3, 2, 4), torch.rand(3), torch.arange(3)), "groups .batch, 2.") for f in IN_BATCH),
        *((lambda f=f: f(torch.rand(3, 2, 4), torch.full((3,), 5.0), GROUPS), "5.0 in row 0") for f in IN_BATCH),
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
