"""Losses with in-batch negatives against values on paper, naive loops, and sentence-transformers."""

import math

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import losses as st_losses

from cosent.losses.cosent import cosent_loss
from cosent.losses.in_batch import cosent_in_batch_loss, cosent_infonce_loss, infonce_loss
from tests.support.gradients import loss_and_gradient

LOSSES = [infonce_loss, cosent_in_batch_loss, cosent_infonce_loss]
E1, E2 = [1.0, 0.0], [0.0, 1.0]


def make_batch(pairs: int, similar_share: float = 0.5, sentences: int = 10**6, seed: int = 0):
    """Embeddings in float64, labels of 0 and 1, and groups, drawn from `sentences` numbers."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(pairs, 2, 6, generator=generator, dtype=torch.float64)
    groups = torch.randint(sentences, (pairs, 2), generator=generator)
    labels = (torch.rand(pairs, generator=generator) < similar_share).double()
    groups[:, 1] = torch.where(labels == 1, groups[:, 0], groups[:, 1])  # similar sentences are in one group
    return embeddings, labels, groups


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def naive_infonce(embeddings, labels, groups, scale=20.0) -> float:
    losses = []
    for i in range(len(labels)):
        for side in (0, 1) if labels[i] >= 0.8 else ():
            positive = scale * cosine(embeddings[i, 0], embeddings[i, 1])
            negatives = [
                scale * cosine(embeddings[i, side], embeddings[j, 1 - side])
                for j in range(len(labels))
                if j != i and groups[i, side] != groups[j, 1 - side]
            ]
            losses.append(math.log(sum(map(math.exp, [positive, *negatives]))) - positive)
    return sum(losses) / len(losses)


def naive_in_batch(embeddings, labels, groups, scale=20.0, negative_weight=0.1) -> float:
    """The definition: CoSENT over the pairs and, one grade below, the negatives with ln(w) in their exponents."""
    size = len(labels)
    negatives = [(i, j) for i in range(size) for j in range(size) if i != j and groups[i, 0] != groups[j, 1]]
    offset = math.log(negative_weight * size / len(negatives)) / scale
    scores = [cosine(*pair) for pair in embeddings]
    scores += [cosine(embeddings[i, 0], embeddings[j, 1]) + offset for i, j in negatives]
    grades = [*labels.tolist(), *[-1.0] * len(negatives)]
    return float(cosent_loss(torch.tensor(scores, dtype=torch.float64), torch.tensor(grades), scale))


def test_infonce_on_paper():
    """Pairs (e1, e1) similar and (e2, e2) not, scale 2: e1 finds itself against e2 in both directions, cosine 1 against
    0, so the loss is log(1 + e^-2). If this fails, scale or the mean are wrong, or other pairs are anchors."""
    batch = torch.tensor([[E1, E1], [E2, E2]])
    loss = infonce_loss(batch, torch.tensor([1.0, 0.0]), torch.tensor([[0, 0], [1, 2]]), scale=2.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)


def test_in_batch_cosent_on_paper():
    """Pairs (e1, e1) with label 1 and (e2, e1) with label 0, scale 1: scores 1 and 0, and of the negatives, e1 and e1
    score 1, e2 and e1 score 0. With a weight of 3 / 2 * 2 pairs / 2 negatives = 1.5: 1 + e^(0 - 1) from the labels,
    1.5 (e + 1) (e^-1 + 1) from the negatives. The first pair's own sentences are similar, so its groups are equal."""
    batch, labels = torch.tensor([[E1, E1], [E2, E1]]), torch.tensor([1.0, 0.0])
    groups = torch.tensor([[0, 0], [1, 2]])
    expected = math.log(1 + math.exp(-1) + 1.5 * (math.e + 1) * (math.exp(-1) + 1))
    loss = cosent_in_batch_loss(batch, labels, groups, scale=1.0, negative_weight=1.5)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sentences", [10**6, 12, 4], ids=["all different", "some repeated", "many repeated"])
def test_equal_to_loops_over_all_sentences(sentences):
    """Fails if a known synonym is pushed away, a negative is overlooked, or a pair's own sentences become negatives."""
    batch = make_batch(16, sentences=sentences)
    synonyms = (batch[2][:, :1] == batch[2][:, 1]).sum() - (batch[2][:, 0] == batch[2][:, 1]).sum()
    assert (synonyms > 0) == (sentences < 100)
    assert infonce_loss(*batch).item() == pytest.approx(naive_infonce(*batch), rel=1e-9)
    assert cosent_in_batch_loss(*batch).item() == pytest.approx(naive_in_batch(*batch), rel=1e-9)
    weight = {"scale": 5.0, "negative_weight": 3.0}
    assert cosent_in_batch_loss(*batch, **weight).item() == pytest.approx(naive_in_batch(*batch, **weight), rel=1e-9)
    ranking = cosent_loss(F.cosine_similarity(*batch[0].unbind(1)), batch[1])
    mixture = cosent_infonce_loss(*batch, contrastive_weight=0.3)
    assert mixture.item() == pytest.approx(float(ranking) + 0.3 * naive_infonce(*batch), rel=1e-9)


def test_infonce_equals_sentence_transformers():
    """Fails if positives alone train to something else than with the most used loss of this kind."""
    embeddings, _, groups = make_batch(32, similar_share=1.0)
    theirs = st_losses.MultipleNegativesSymmetricRankingLoss(torch.nn.Identity(), scale=20.0)
    expected, gradient = loss_and_gradient(
        lambda e: theirs([{"sentence_embedding": side} for side in e.unbind(1)], None), embeddings
    )
    loss, own_gradient = loss_and_gradient(infonce_loss, embeddings, torch.ones(32), groups)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert (own_gradient - gradient).norm() <= 1e-6 * gradient.norm() and gradient.norm() > 0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("pairs, groups", [(1, [[0, 1]]), (3, [[0, 0]] * 3), (0, [])], ids=["one", "one group", "none"])
def test_a_batch_without_negatives_teaches_nothing(loss, pairs, groups):
    """Fails if such a batch moves the weights, or turns them into NaN."""
    embeddings = torch.randn(pairs, 2, 4, generator=torch.Generator().manual_seed(0))
    groups = torch.tensor(groups, dtype=torch.long).reshape(pairs, 2)
    value, gradient = loss_and_gradient(loss, embeddings, torch.ones(pairs), groups)
    assert value == 0 and not gradient.any()
    value, gradient = loss_and_gradient(infonce_loss, *make_batch(8, similar_share=0.0))  # nothing to draw together
    assert value == 0 and not gradient.any()


def test_a_thousand_pairs_stay_small():
    """Fails if the million negatives of a large batch take more than a few matrices of their cosines (4 MB each)."""
    embeddings, labels, groups = (part.float() if part.is_floating_point() else part for part in make_batch(1024))
    for loss in LOSSES:
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=saved: s.append(t.nbytes) or t, lambda t: t):
            loss(embeddings.clone().requires_grad_(), labels, groups).backward()
        assert 4e6 < sum(saved) < 60e6, (loss, sum(saved))
