"""CoSENT and AnglE against values on paper, a float64 sum over all pairs of pairs, and sentence-transformers."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import losses as st_losses

from cosent.losses.angle import angle_loss
from cosent.losses.cosent import cosent_loss
from tests.support.gradients import loss_and_gradient


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
@pytest.mark.parametrize(("kind", "batch"), [*SIZES, ("graded", 1024)])
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


TWO_TERMS = partial(angle_loss, in_batch_weight=0.0)


def groups(pairs: int) -> torch.Tensor:
    return torch.arange(2 * pairs).view(pairs, 2)


def cosines_cosent(embeddings, labels, groups):
    return cosent_loss(F.cosine_similarity(embeddings[:, 0], embeddings[:, 1]), labels)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(cosines_cosent, st_losses.CoSENTLoss), (partial(TWO_TERMS, cosine_weight=0.0), st_losses.AnglELoss)],
)
def test_equal_to_sentence_transformers(ours, theirs):
    """Fails if results cannot be compared with those of the most used library."""
    generator = torch.Generator().manual_seed(0)
    labels, embeddings = torch.randint(5, (48,), generator=generator) / 4, torch.randn(48, 2, 32, generator=generator)
    loss, gradient = loss_and_gradient(ours, embeddings, labels, groups(48))
    expected, expected_gradient = loss_and_gradient(
        lambda e, y: theirs(model=None).compute_loss_from_embeddings(list(e.unbind(1)), y), embeddings, labels
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
    assert gradient.norm() > 0.1


def test_angle_on_paper():
    """Hidden size 2 is one complex number. u = 1 (1, 0), v = i (0, 1): cos 0, sin = 0 * 0 - 1 * 1 = -1, angle score 1.
    u = v: cos 1, sin 0, angle score 1. With label 1 for the second pair the angle term is log(1 + e^0) = log 2, the
    cosine term log(1 + exp(2 (0 - 1))). If this fails, real and imaginary halves are mixed up.

    In-batch term: only the second pair is similar. Its sentences (1, 1) / sqrt 2 have cosine 1 with one another and
    1 / sqrt 2 with both others, so each costs log(e^2 + 2 e^sqrt 2) - 2; the mean runs over all 4 sentences.

    The angle has a scale of its own: u = (1, 0), v = (0.6, 0.8) have cos 0.6, sin -0.8, angle score 0.2."""
    embeddings = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0])
    both = angle_loss(embeddings, labels, groups(2), scale=2.0, cosine_weight=0.5, in_batch_weight=0.0)
    assert both.item() == pytest.approx(math.log(2) + 0.5 * math.log1p(math.exp(-2)))
    every = angle_loss(embeddings, labels, groups(2), scale=2.0, cosine_weight=0.5, in_batch_weight=3.0)
    term = (math.log(math.exp(2) + 2 * math.exp(math.sqrt(2))) - 2) / 2
    assert every.item() == pytest.approx(both.item() + 3 * term)
    embeddings = torch.tensor([[[1.0, 0.0], [0.6, 0.8]], [[1.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    loss = TWO_TERMS(embeddings, labels, groups(2), scale=20.0, angle_scale=1.0)
    assert loss.item() == pytest.approx(math.log1p(math.exp(0.2 - 1)) + math.log1p(math.exp(20 * (0.6 - 1))))


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


def test_a_zero_vector_has_a_finite_gradient():
    """Fails if one dead sentence vector turns all weights into NaN or throws them far away."""
    embeddings = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
    embeddings[0, 0] = 0
    _, gradient = loss_and_gradient(angle_loss, embeddings, torch.tensor([1.0, 0.0, 1.0, 0.0]), groups(4))
    assert gradient.isfinite().all() and gradient.abs().max() < 100 and gradient[1:].norm() > 0
