"""CoSENT and AnglE against values on paper, a float64 sum over all pairs of pairs, and sentence-transformers."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import losses as st_losses

from cosent.losses.cosent import cosent_loss, has_ordered_pair
from tests.losses.gradients import loss_and_gradient


def all_pairs_cosent(scores: torch.Tensor, labels: torch.Tensor, scale: float) -> torch.Tensor:
    """The definition: one term for each i, j with labels[i] > labels[j], in a (batch, batch) matrix of float64."""
    scores = scores.double() * scale
    terms = scores[None, :] - scores[:, None]  # [i, j] = scores[j] - scores[i]
    terms = terms.masked_fill(~(labels[:, None] > labels[None, :]), -torch.inf)
    return torch.cat((scores.new_zeros(1), terms.flatten())).logsumexp(0)


def random_labels(kind: str, batch: int, generator: torch.Generator) -> torch.Tensor:
    if kind == "distinct":
        return torch.randperm(batch, generator=generator).float()
    grades = {"binary": 2, "nli": 3, "graded": 26}[kind]
    return torch.randint(grades, (batch,), generator=generator) / (5 if kind == "graded" else 1)


SIZES = [(kind, batch) for kind in ("binary", "nli", "graded", "distinct") for batch in (1, 2, 64)]


@pytest.mark.parametrize("spread, scale", [(1.0, 20.0), (50.0, 1.0)], ids=["cosines", "logits"])
@pytest.mark.parametrize(("kind", "batch"), [*SIZES, ("graded", 4096)])
def test_cosent_equals_the_sum_over_all_pairs(kind, batch, spread, scale):
    """Fails if training minimises something else than CoSENT. Measured noise: loss 3e-7, gradient 4e-8."""
    generator = torch.Generator().manual_seed(batch)
    scores = (torch.rand(batch, generator=generator) * 2 - 1) * spread
    labels = torch.tensor([1.0, 0.0]) if batch == 2 else random_labels(kind, batch, generator)
    expected, expected_gradient = loss_and_gradient(all_pairs_cosent, scores.double(), labels, scale)
    loss, gradient = loss_and_gradient(cosent_loss, scores, labels, scale)

    assert loss.dtype == gradient.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-30)
    assert (gradient - expected_gradient).norm() <= 5e-7 * expected_gradient.norm()
    assert batch == 1 or expected_gradient.norm() > 0  # something was compared


def test_cosent_on_paper():
    """Scores 0.3, 0.5, 0.1 with labels 1, 0, 0 and scale 10: two ordered pairs, terms exp(10 (0.5 - 0.3)) = e^2 and
    exp(10 (0.1 - 0.3)) = e^-2, so the loss is log(1 + e^2 + e^-2) = log(Z). Its gradient is 10 / Z times (-e^2 - e^-2,
    e^2, e^-2). If this fails, sign, scale or the 1 are wrong."""
    e2, z = math.exp(2), 1 + math.exp(2) + math.exp(-2)
    loss, gradient = loss_and_gradient(
        partial(cosent_loss, scale=10.0), torch.tensor([0.3, 0.5, 0.1]).double(), torch.tensor([1, 0, 0])
    )
    assert loss.item() == pytest.approx(math.log(z), rel=1e-7)
    assert gradient.tolist() == pytest.approx([-10 * (e2 + 1 / e2) / z, 10 * e2 / z, 10 / e2 / z], rel=1e-6)


@pytest.mark.parametrize("labels", [[2.0], [1.0, 1.0, 1.0], []], ids=["one pair", "equal labels", "empty"])
def test_cosent_without_an_ordered_pair_is_exactly_zero(labels):
    """Fails if a batch that teaches nothing moves the weights, or crashes backward."""
    labels = torch.tensor(labels)
    loss, gradient = loss_and_gradient(cosent_loss, torch.linspace(-0.5, 0.5, len(labels)), labels)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros(len(labels)))
    assert not has_ordered_pair(labels)


def test_has_ordered_pair_sees_any_difference():
    """Fails if the count of dead batches that the trainer reports is wrong."""
    assert has_ordered_pair(torch.tensor([1, 1, 0])) and has_ordered_pair(torch.tensor([False, True]))


def test_cosent_depends_on_the_order_of_labels_only():
    """Fails if rescaling labels or shuffling a batch changes training; integer and bool labels count as well."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(64, generator=generator), torch.randint(6, (64,), generator=generator)
    loss, gradient = loss_and_gradient(cosent_loss, scores, labels)
    for same_order in (labels.float().exp(), labels / 5 - 3, labels.to(torch.int8), labels.bfloat16(), labels.half()):
        assert torch.equal(loss_and_gradient(cosent_loss, scores, same_order)[1], gradient)
    order = torch.randperm(64, generator=generator)
    shuffled, shuffled_gradient = loss_and_gradient(cosent_loss, scores[order], labels[order])
    torch.testing.assert_close(shuffled, loss)
    torch.testing.assert_close(shuffled_gradient, gradient[order])
    assert cosent_loss(scores, labels > 2) == cosent_loss(scores, (labels > 2).long())
    assert cosent_loss(scores, -labels) != loss


def test_cosent_survives_extreme_scores():
    """Scores of +-1e6 (the source clips there): the only wrong pair costs 2e6, its gradient is -1 and 1.
    If this fails, a cross-encoder that is sure of itself ends in NaN."""
    loss, gradient = loss_and_gradient(
        partial(cosent_loss, scale=1.0), torch.tensor([-1e6, 1e6, -1e6]), torch.tensor([1.0, 0.0, 0.0])
    )
    assert loss.item() == 2e6
    assert gradient.tolist() == [-1, 1, 0]


def test_cosent_equals_sentence_transformers():
    """Fails if results cannot be compared with those of the most used library."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (48,), generator=generator) / 4
    embeddings = torch.randn(48, 2, 32, generator=generator)

    def theirs(e, y):
        return st_losses.CoSENTLoss(model=None).compute_loss_from_embeddings(list(e.unbind(1)), y)

    def ours(e, y):
        return cosent_loss(F.cosine_similarity(e[:, 0], e[:, 1]), y)

    loss, gradient = loss_and_gradient(ours, embeddings, labels)
    expected, expected_gradient = loss_and_gradient(theirs, embeddings, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert gradient.norm() > 0.1
