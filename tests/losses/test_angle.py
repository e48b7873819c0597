"""AnglE on paper, against sentence-transformers, and against a naive version of its in-batch term."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import losses as st_losses
from sentence_transformers.util import pairwise_angle_sim

from cosent.losses.angle import angle_loss
from tests.losses.gradients import loss_and_gradient

TWO_TERMS = partial(angle_loss, in_batch_weight=0.0)


def groups(pairs: int) -> torch.Tensor:
    return torch.arange(2 * pairs).view(pairs, 2)


def test_angle_equals_sentence_transformers():
    """Fails if results cannot be compared with those of the most used library."""
    generator = torch.Generator().manual_seed(0)
    labels, embeddings = torch.randint(5, (48,), generator=generator) / 4, torch.randn(48, 2, 32, generator=generator)
    loss, gradient = loss_and_gradient(partial(TWO_TERMS, cosine_weight=0.0), embeddings, labels, groups(48))
    theirs = st_losses.AnglELoss(model=None)
    expected, expected_gradient = loss_and_gradient(
        lambda e, y: theirs.compute_loss_from_embeddings(list(e.unbind(1)), y), embeddings, labels
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert gradient.norm() > 0.1


def test_angle_on_paper():
    """Hidden size 2 is one complex number. u = 1 (1, 0), v = i (0, 1): cos 0, sin = 0 * 0 - 1 * 1 = -1, angle score 1.
    u = v: cos 1, sin 0, angle score 1. With label 1 for the second pair the angle term is log(1 + e^0) = log 2, the
    cosine term log(1 + exp(2 (0 - 1))). If this fails, real and imaginary halves are mixed up.

    In-batch term: only the second pair is similar. Its sentences (1, 1) / sqrt 2 have cosine 1 with one another and
    1 / sqrt 2 with both others, so each costs log(e^2 + 2 e^sqrt 2) - 2; the mean runs over all 4 sentences."""
    embeddings = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0])
    both = angle_loss(embeddings, labels, groups(2), scale=2.0, cosine_weight=0.5, in_batch_weight=0.0)
    assert both.item() == pytest.approx(math.log(2) + 0.5 * math.log1p(math.exp(-2)))
    torch.testing.assert_close(pairwise_angle_sim(embeddings[:, 0], embeddings[:, 1]), torch.ones(2).double())
    every = angle_loss(embeddings, labels, groups(2), scale=2.0, cosine_weight=0.5, in_batch_weight=3.0)
    term = (math.log(math.exp(2) + 2 * math.exp(math.sqrt(2))) - 2) / 2
    assert every.item() == pytest.approx(both.item() + 3 * term)


def test_in_batch_term_is_that_of_the_paper():
    """Fails if a sentence is compared with itself or with a known synonym, or a dissimilar pair counts as a positive.

    The reference goes through sentences one by one: `-log softmax` of the partner among all other sentences, 0 for
    sentences of dissimilar pairs, the mean over all sentences, as in SeanLee97/AnglE.
    """
    generator = torch.Generator().manual_seed(1)
    embeddings = torch.randn(5, 2, 6, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1.0, 0.0, 1.0, 0.4, 0.8])
    numbers = groups(5).clone()
    numbers[4, 1] = numbers[0, 0]  # the same sentence twice: never a negative of itself
    flat, number = F.normalize(embeddings, dim=-1).reshape(10, 6), numbers.reshape(10).tolist()
    total = 0.0
    for sentence in range(10):
        if labels[sentence // 2] < 0.8:
            continue
        partner = sentence + 1 if sentence % 2 == 0 else sentence - 1
        others = [j for j in range(10) if j == partner or number[j] != number[sentence]]
        logits = {j: 20 * float(flat[sentence] @ flat[j]) for j in others}
        total += math.log(sum(math.exp(logit) for logit in logits.values())) - logits[partner]
    whole = angle_loss(embeddings, labels, numbers)
    term = whole - TWO_TERMS(embeddings, labels, numbers)
    assert term.item() == pytest.approx(total / 10) and total > 1
    assert torch.autograd.gradcheck(partial(angle_loss, labels=labels, groups=numbers), embeddings.requires_grad_())


def test_a_zero_vector_has_a_finite_gradient():
    """Fails if one dead sentence vector turns all weights into NaN or throws them far away."""
    embeddings = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
    embeddings[0, 0] = 0
    _, gradient = loss_and_gradient(angle_loss, embeddings, torch.tensor([1.0, 0.0, 1.0, 0.0]), groups(4))
    assert gradient.isfinite().all() and gradient.abs().max() < 100 and gradient[1:].norm() > 0
