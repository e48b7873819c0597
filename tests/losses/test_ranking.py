"""CoSENT within groups and its options, and the losses it is compared with: on paper, and against loops in float64."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from cosent.data.manifest import Manifest
from cosent.losses.classification import cross_entropy_loss, sbert_cosent_loss
from cosent.losses.cosent import cosent_loss
from cosent.losses.ranking import (
    hinge_loss,
    lambda_rank_loss,
    list_ce_loss,
    listmle_loss,
    listnet_loss,
    ranknet_loss,
)
from cosent.training.objective import loss_targets
from tests.losses.gradients import loss_and_gradient

LOSSES = [cosent_loss, ranknet_loss, hinge_loss, lambda_rank_loss, list_ce_loss, listmle_loss, listnet_loss]
SMOOTH = [loss for loss in LOSSES if loss not in (hinge_loss, lambda_rank_loss)]
LN2 = math.log(2)


def make_batch(batch: int, lists: int, grades: int = 4, seed: int = 0):
    """Scores in float64, labels within 0..1, and lists with far-apart numbers in no order."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, generator=generator, dtype=torch.float64) * 2 - 1
    labels = torch.randint(grades, (batch,), generator=generator).double() / (grades - 1)
    return scores, labels, torch.randint(lists, (batch,), generator=generator) * -(10**12) + 7


def comparisons(labels, groups) -> list[tuple[int, int]]:
    """All i, j of one group with a higher label of i."""
    rows = range(len(labels))
    return [(i, j) for i in rows for j in rows if groups[i] == groups[j] and labels[i] > labels[j]]


def softplus(value: float) -> float:
    return math.log1p(math.exp(value))


def naive_cosent(s, y, g, scale=20.0, weights=None, margin=0.0, top_k=0):
    c = [1.0] * len(s) if weights is None else weights.tolist()
    terms: dict[int, list[float]] = {}
    for i, j in comparisons(y, g):
        difference = float(s[j] - s[i] + margin * (y[i] - y[j]))
        terms.setdefault(i, []).append(c[i] * c[j] * math.exp(scale * difference))
    kept = [sum(sorted(of_row, reverse=True)[: top_k or None]) for of_row in terms.values()]
    return math.log(1 + sum(kept))


def naive_ranknet(s, y, g, scale=20.0, margin=0.0):
    terms = [softplus(scale * float(s[j] - s[i] + margin * (y[i] - y[j]))) for i, j in comparisons(y, g)]
    return sum(terms) / len(terms)


def naive_hinge(s, y, g, margin=0.2):
    terms = [max(0.0, float(s[j] - s[i] + margin * (y[i] - y[j]))) for i, j in comparisons(y, g)]
    return sum(terms) / len(terms)


def naive_list_ce(s, y, g, scale=20.0):
    terms: dict[int, float] = {}
    for i, j in comparisons(y, g):
        terms[i] = terms.get(i, 0.0) + math.exp(scale * float(s[j] - s[i]))
    return sum(math.log1p(term) for term in terms.values()) / len(terms)


def lists(y, g) -> list[list[int]]:
    """The rows of each list that has two labels."""
    members = [[i for i in range(len(y)) if g[i] == number] for number in g.unique()]
    return [rows for rows in members if len({float(y[i]) for i in rows}) > 1]


def naive_listmle(s, y, g, scale=20.0):
    terms = [
        math.log(sum(math.exp(scale * float(s[j] - s[i])) for j in rows if y[j] <= y[i]))
        for rows in lists(y, g)
        for i in rows
    ]
    return sum(terms) / len(terms)


def naive_listnet(s, y, g, scale=20.0):
    terms = [-(torch.softmax(5 * y[r].double(), 0) * torch.log_softmax(scale * s[r], 0)).sum() for r in lists(y, g)]
    return float(sum(terms) / len(terms))


def naive_lambda_rank(s, y, g, scale=20.0):
    total = 0.0
    for rows in lists(y, g):
        ideal = sum(float(label) / math.log2(2 + place) for place, label in enumerate(sorted(y[rows], reverse=True)))
        place = {i: rank for rank, i in enumerate(sorted(rows, key=lambda i: -s[i]))}

        def gained(order, rows=rows, ideal=ideal):
            return sum(float(y[i]) / math.log2(2 + order[i]) for i in rows) / ideal

        for i, j in comparisons(y, g):
            if i in place:
                swapped = place | {i: place[j], j: place[i]}
                total += abs(gained(swapped) - gained(place)) * softplus(scale * float(s[j] - s[i]))
    return total / len(lists(y, g))


NAIVE = [naive_cosent, naive_ranknet, naive_hinge, naive_lambda_rank, naive_list_ce, naive_listmle, naive_listnet]


@pytest.mark.parametrize(("loss", "naive"), zip(LOSSES, NAIVE, strict=True))
@pytest.mark.parametrize(("size", "number", "grades"), [(40, 7, 4), (40, 1, 2), (33, 12, 11), (2, 1, 2)])
def test_equal_to_loops_over_all_pairs(loss, naive, size, number, grades):
    """Fails if pairs of different queries are compared, ties are, or a sum over sorted rows leaves out a pair."""
    scores, labels, groups = make_batch(size, number, grades, seed=1)
    labels[:2], groups[:2] = (scores[:2] < scores[:2].mean()).double(), groups[0].clone()  # a wrong order at least
    value, gradient = loss_and_gradient(partial(loss, groups=groups), scores, labels)
    assert value.item() == pytest.approx(naive(scores, labels, groups), rel=1e-9)
    assert gradient.norm() > 0
    if number == 1:
        whole, same = loss_and_gradient(loss, scores, labels)
        torch.testing.assert_close(whole, value, rtol=1e-12, atol=0)
        torch.testing.assert_close(same, gradient, rtol=1e-9, atol=1e-12)


def test_cosent_within_groups_on_paper():
    """Queries a, b, a, b, a with labels 1, 1, 0, 0, 1 and scale 10: of a, row 2 is compared with rows 0 and 4, of b row
    3 with row 1. Differences 0.1, -0.1 and 0: log(1 + e + 1/e + 1). If this fails, queries are ranked together."""
    scores = torch.tensor([0.2, 0.5, 0.3, 0.5, 0.4], dtype=torch.float64)
    labels, groups = torch.tensor([1, 1, 0, 0, 1]), torch.tensor([9, 4, 9, 4, 9])
    loss, gradient = loss_and_gradient(partial(cosent_loss, scale=10.0, groups=groups), scores, labels)
    z = 2 + math.e + 1 / math.e
    assert loss.item() == pytest.approx(math.log(z))
    expected = [-10 * math.e / z, -10 / z, 10 * (math.e + 1 / math.e) / z, 10 / z, -10 / math.e / z]
    assert gradient.tolist() == pytest.approx(expected)


def test_others_on_paper():
    """Scores 0, 0 with labels 1, 0 cost log 2 in every logistic loss; a hinge of margin 0.2 costs 0.2; swapping them
    changes nDCG by 1 - 1 / log2(3); ListNet adds the cross entropy of e^5 : 1 and 1 : 1. If this fails, a factor is
    wrong, and results cannot be compared with those of others."""
    scores, labels = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.0])
    for loss in (ranknet_loss, list_ce_loss, listnet_loss, partial(cosent_loss, scale=3.0)):
        assert loss(scores, labels).item() == pytest.approx(LN2)
    assert listmle_loss(scores, labels).item() == pytest.approx(LN2 / 2)  # the last draw is certain
    assert hinge_loss(scores, labels, margin=0.2).item() == pytest.approx(0.2)
    assert lambda_rank_loss(scores, labels).item() == pytest.approx((1 - 1 / math.log2(3)) * LN2)


@pytest.mark.parametrize("loss", SMOOTH)
def test_gradients_are_those_of_the_formulas(loss):
    """Fails if backward disagrees with forward (finite differences in float64)."""
    scores, labels, groups = make_batch(24, 5)
    assert gradcheck(lambda s: loss(s, labels, groups=groups), scores.requires_grad_())


def test_gradients_where_differences_do_not_help():
    """The hinge has kinks, so it is compared with autograd on a matrix; LambdaRank's ranks have no gradient, so between
    two rows that swap none it is that of its weighted RankNet. If this fails, they train on something else."""
    scores, labels, groups = make_batch(60, 6)

    def by_matrix(s, margin=0.2):
        higher = (labels[:, None] > labels) & (groups[:, None] == groups)
        differences = s - s[:, None] + margin * (labels[:, None] - labels)
        return differences[higher].relu().mean()

    gradient = loss_and_gradient(partial(hinge_loss, groups=groups), scores, labels)[1]
    expected = loss_and_gradient(by_matrix, scores)[1]
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    gradient = loss_and_gradient(partial(lambda_rank_loss, scale=2.0), torch.zeros(2).double(), torch.tensor([1.0, 0]))[
        1
    ]
    assert gradient.tolist() == pytest.approx([-(1 - 1 / math.log2(3)), 1 - 1 / math.log2(3)])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows", [0, 1, 6])
def test_lists_of_one_label_teach_nothing(loss, rows):
    """Fails if a query with positives alone moves the weights, or turns them into NaN."""
    groups = torch.arange(rows) // 2
    value, gradient = loss_and_gradient(partial(loss, groups=groups), torch.linspace(-1, 1, rows), (groups % 2).float())
    assert value == 0 and not gradient.any()


@pytest.mark.parametrize("loss", LOSSES)
def test_extreme_scores_half_precision_and_nan(loss):
    """Fails if a sure cross-encoder ends in NaN, mixed precision loses digits, or a diverged model trains on."""
    scores, labels, groups = make_batch(64, 6)
    half = scores.bfloat16()
    assert loss(half, labels, groups=groups) == loss(half.float(), labels, groups=groups)
    assert loss(half, labels, groups=groups).dtype == torch.float32
    value, gradient = loss_and_gradient(partial(loss, groups=groups), scores * 1e5, labels)
    assert value.isfinite() and gradient.isfinite().all() and gradient.norm() > 0
    scores[labels == 0] = math.nan
    assert loss(scores, labels, groups=groups).isnan()


def test_blocks_are_one_batch():
    """Fails if the blocks of a large batch are compared within themselves, or rows of the last one are left out."""
    scores, labels, groups = make_batch(700, 3)
    loss, gradient = loss_and_gradient(partial(ranknet_loss, groups=groups), scores, labels)

    def by_matrix(s):
        higher = (labels[:, None] > labels) & (groups[:, None] == groups)
        return torch.nn.functional.softplus(20 * (s - s[:, None]))[higher].mean()

    expected, expected_gradient = loss_and_gradient(by_matrix, scores)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.parametrize("options", [{"margin": 0.3}, {"top_k": 2}, {"top_k": 99}, {"weights": torch.rand(40) + 0.1},
                                     {"weights": torch.rand(40).round(), "top_k": 1, "margin": 0.1}])  # fmt: skip
@pytest.mark.parametrize("number", [1, 5])
def test_options_of_cosent_equal_loops(options, number):
    """Fails if an option changes another term than it says, or leaks between groups."""
    scores, labels, groups = make_batch(40, number)
    value, gradient = loss_and_gradient(partial(cosent_loss, groups=groups, **options), scores, labels)
    assert value.item() == pytest.approx(naive_cosent(scores, labels, groups, **options), rel=1e-6)
    weights = options.get("weights")
    assert gradient.norm() > 0 and (weights is None or not gradient[weights == 0].any())
    assert gradcheck(lambda s: cosent_loss(s, labels, groups=groups, **options), scores.requires_grad_())


def test_a_margin_is_a_shift_of_the_scores_and_all_hardest_are_all():
    """Fails if an identity of the review does not hold: a margin m of binary labels is CoSENT on s - m t."""
    scores, labels, _ = make_batch(64, 1, grades=2)
    assert cosent_loss(scores, labels, margin=0.1) == cosent_loss(scores - 0.1 * labels, labels)
    assert cosent_loss(scores, labels, top_k=64).item() == pytest.approx(cosent_loss(scores, labels).item(), rel=1e-12)
    negatives = (labels == 0).nonzero()[:, 0]
    hardest = negatives[scores[negatives].topk(5).indices]
    rows = torch.cat(((labels == 1).nonzero()[:, 0], hardest))  # of binary labels, CoSENT on a part of the batch
    assert cosent_loss(scores, labels, top_k=5).item() == pytest.approx(cosent_loss(scores[rows], labels[rows]).item())


def test_difficulty():
    """Cosines 0.5, 0.1, 0.9 of labels 1, 0, 0 have difficulties 0.5, 0.1, 0.9. With gamma 2 they weigh 0.25, 0.01 and
    0.81; the easiest two thirds are the first two. If this fails, easy pairs pass for hard ones."""
    scores, labels = torch.tensor([0.5, 0.1, 0.9], dtype=torch.float64), torch.tensor([1.0, 0.0, 0.0])
    focal = cosent_loss(scores, labels, scale=1.0, focal_gamma=2.0)
    expected = 1 + 0.25 * (0.01 * math.exp(-0.4) + 0.81 * math.exp(0.4))
    assert focal.item() == pytest.approx(math.log(expected))
    weighted = partial(cosent_loss, scale=1.0, weights=torch.tensor([0.25, 0.01, 0.81]).double())
    own = loss_and_gradient(partial(cosent_loss, scale=1.0, focal_gamma=2.0), scores, labels)[1]
    torch.testing.assert_close(own, loss_and_gradient(weighted, scores, labels)[1])  # no gradient through the weights
    easy = cosent_loss(scores, labels, scale=1.0, curriculum=2 / 3)
    assert easy.item() == pytest.approx(math.log(1 + math.exp(-0.4)))
    with pytest.raises(ValueError, match=r"0\.\.1.* 5.0"):
        cosent_loss(scores, labels * 5, focal_gamma=1.0)


def test_sbert_with_a_ranking_term():
    """Fails if the term is another one, or labels are smoothed otherwise than transformers' flag says: logits 0, 0 cost
    log 2 with any smoothing; logits (0, log 3), class 1, smoothing 0.2: 0.9 log(4/3) + 0.1 log 4."""
    logits, labels = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]]), torch.tensor([0.0, 1.0])
    smooth = cross_entropy_loss(logits, labels, label_smoothing_factor=0.2).item()
    assert smooth == pytest.approx((LN2 + 0.9 * math.log(4 / 3) + 0.1 * math.log(4)) / 2)
    scores = torch.tensor([0.3, 0.2])
    both = sbert_cosent_loss(logits, labels, scores, cosent_weight=0.5, label_smoothing_factor=0.2, scale=20.0)
    assert both.item() == pytest.approx(smooth + 0.5 * math.log1p(math.exp(2)))
    manifest = Manifest("stsb", "graded", 0.0, 5.0, {}, {})
    grades = np.arange(0, 5.01, 0.25, dtype=np.float32)
    for classes in (2, 3, 5, 6):
        shares, expected = (loss_targets(name, grades, manifest, classes) for name in ("sbert_cosent", "sbert"))
        logits = torch.randn(len(grades), classes)
        value = sbert_cosent_loss(logits, torch.from_numpy(shares), torch.zeros(len(grades)), cosent_weight=0.0)
        assert value == cross_entropy_loss(logits, torch.from_numpy(expected))


@pytest.mark.parametrize("loss", LOSSES)
def test_groups_of_another_shape_are_refused(loss):
    """Fails if the groups of sentences are read as groups of pairs."""
    scores, labels, groups = make_batch(6, 2)
    for wrong in (groups[:, None].expand(6, 2), groups[:3], groups.float()):
        with pytest.raises(ValueError, match=r"groups \(batch,\)"):
            loss(scores, labels, groups=wrong)
