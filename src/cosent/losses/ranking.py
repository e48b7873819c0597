"""Losses that rank the pairs of a list, to compare CoSENT with: pairwise and listwise, all with gradients in O(batch).

`scores` and `labels` are those of `losses.cosent`, and so are dtypes and NaN. `groups` (whole numbers of shape
`(batch,)`) say which list a pair belongs to, by default all to one: only pairs of one list are compared, and lists of a
single label teach nothing. Without any other list the loss and its gradient are exactly 0.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import check_pair_groups, check_range, check_scores, refuse
from cosent.losses.cosent import COSINE_SCALE, as_float64, grades_of, ordered

BLOCK = 256  # rows of a batch that are compared with all others at a time
LABEL_SCALE = 5.0  # ListNet's grades 0..5 of labels 0..1


def ranknet_loss(
    scores: Tensor, labels: Tensor, groups: Tensor | None = None, scale: float = COSINE_SCALE, margin: float = 0.0
) -> Tensor:
    """`mean over i, j of a list with labels[i] > labels[j] of log(1 + exp(scale * (s[j] - s[i])))`.

    `s = scores - margin * labels`. Each wrong pair weighs the same, where CoSENT weighs it by a softmax over all. The
    terms do not split over i and j: O(batch^2) time, O(batch) memory.

    Source: https://icml.cc/Conferences/2005/proceedings/papers/012_LearningToRank_BurgesEtAl.pdf, eq. 3.
    """
    scores = checked(scores, labels, groups)
    scores = scale * (scores - margin * labels.to(scores.dtype))
    total = _Blocks.apply(scores, labels, groups, lambda rows, differences: F.softplus(differences))
    return total / ordered_pairs(labels, groups)


def lambda_rank_loss(
    scores: Tensor, labels: Tensor, groups: Tensor | None = None, scale: float = COSINE_SCALE
) -> Tensor:
    """RankNet whose pairs weigh `|change of nDCG if they swapped ranks|`: sum within a list, mean over lists.

    Gains are the labels, in 0..1, and ranks those of the scores, without gradient. O(batch^2) time, O(batch) memory.

    Source: https://www.microsoft.com/en-us/research/publication/from-ranknet-to-lambdarank-to-lambdamart-an-overview.
    """
    scores = checked(scores, labels, groups)
    check_range(labels)
    number, _, lists = lists_of(labels, groups)
    labels = labels.to(scores.dtype)
    discount, best = (1 / torch.log2(2 + ranks(x, number).to(x.dtype)) for x in (scores.detach(), labels))
    ideal = torch.zeros_like(labels).scatter_add_(0, number, labels * best)
    ideal = ideal.clamp(min=1e-6)[number]  # (batch,), DCG of the best order

    def weighted(rows: slice, differences: Tensor) -> Tensor:
        change = (labels[rows, None] - labels) * (discount[rows, None] - discount).abs() / ideal[rows, None]
        return change * F.softplus(differences)

    return _Blocks.apply(scale * scores, labels, groups, weighted) / lists


def hinge_loss(scores: Tensor, labels: Tensor, groups: Tensor | None = None, margin: float = 0.2) -> Tensor:
    """`mean over i, j of a list with labels[i] > labels[j] of max(0, s[j] - s[i])`, `s = scores - margin * labels`.

    O(batch log batch) for each bit of the number of grades: i is above j if the first bit in which their grades differ
    is 1 in that of i. Rows that share the bits before it form a cell, where the sum runs over sorted scores.

    Source: https://www.cs.cornell.edu/people/tj/publications/joachims_02c.pdf; its margin is the same for all labels.
    """
    scores = checked(scores, labels, groups)
    scores = scores - margin * labels.to(scores.dtype)
    grades = grades_of(labels, groups)
    x = as_float64(scores)[grades.order]
    group = torch.zeros_like(grades.grade) if grades.group is None else grades.group[grades.grade]
    total = x.sum() * 0  # a gradient for a batch of one grade
    for bit in range((grades.number - 1).bit_length() if grades.number else 0):
        prefix = torch.stack((group, grades.grade >> (bit + 1)))  # (2, batch)
        cell = F.pad((prefix[:, 1:] != prefix[:, :-1]).any(0).cumsum(0), (1, 0))
        order = x.argsort()
        order = order[cell[order].argsort(stable=True)]
        x_sorted, is_high = x[order], (grades.grade >> bit & 1)[order]  # (batch,) each
        start = torch.searchsorted(cell, cell)  # of each row's cell
        count, summed = (F.pad(values.cumsum(0), (1, 0)) for values in (is_high, is_high * x_sorted))
        beaten = (count[1:] - count[start]) * x_sorted - (summed[1:] - summed[start])
        total = total + ((1 - is_high) * beaten).sum()
    return (total / ordered_pairs(labels, groups)).to(scores.dtype)


def list_ce_loss(scores: Tensor, labels: Tensor, groups: Tensor | None = None, scale: float = COSINE_SCALE) -> Tensor:
    """`mean over i of log(1 + sum over j of its list with labels[j] < labels[i] of exp(scale * (s[j] - s[i])))`.

    The cross entropy of finding i among its list's lower pairs, as rerankers train on a positive and its negatives;
    rows without a lower pair add nothing. O(batch log batch).

    Source: https://github.com/FlagOpen/FlagEmbedding, `finetune/reranker`, where i is the only positive of its list.
    """
    x = scale * checked(scores, labels, groups)
    lower = log_sums(x, labels, groups)
    return mean_of(F.softplus(lower - x), lower != -torch.inf)


def listmle_loss(scores: Tensor, labels: Tensor, groups: Tensor | None = None, scale: float = COSINE_SCALE) -> Tensor:
    """`mean over i of log(sum over j of its list with labels[j] <= labels[i] of exp(scale * (s[j] - s[i])))`.

    ListMLE, the likelihood of drawing the list from its top, in a form for ties: a pair is drawn among those of its own
    label and of lower ones. O(batch log batch).

    Source: https://icml.cc/Conferences/2008/papers/167.pdf, eq. 9.
    """
    x = scale * checked(scores, labels, groups)
    return mean_of(log_sums(x, labels, groups, ties=True) - x, lists_of(labels, groups)[1])


def listnet_loss(scores: Tensor, labels: Tensor, groups: Tensor | None = None, scale: float = COSINE_SCALE) -> Tensor:
    """`mean over lists of the cross entropy of softmax(5 * labels) and softmax(scale * scores)` over the list's pairs.

    Labels lie within 0..1: the grades 0..5 of the source. O(batch log batch).

    Source: https://www.microsoft.com/en-us/research/wp-content/uploads/2016/02/tr-2007-40.pdf, with the top-1 model.
    """
    x = scale * checked(scores, labels, groups)
    check_range(labels)
    _, mixed, lists = lists_of(labels, groups)
    one = torch.zeros_like(labels)  # a single grade
    gains = LABEL_SCALE * labels.to(x.dtype)
    target = (gains - log_sums(gains, one, groups, ties=True)).exp()  # (batch,), 1 in sum over a list
    return (target * (log_sums(x, one, groups, ties=True) - x))[mixed].sum() / lists


def checked(scores: Tensor, labels: Tensor, groups: Tensor | None) -> Tensor:
    scores = check_scores(scores, labels, is_mean=False)
    refuse(labels.isnan(), labels, "numbers")
    check_pair_groups(groups, labels)
    return scores


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    return values[counted].sum() / counted.sum().clamp(min=1)


def lists_of(labels: Tensor, groups: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Number from 0 of each row's list, whether the list has several labels, `(batch,)`, and how many have (or 1)."""
    if groups is None:
        groups = torch.zeros_like(labels, dtype=torch.long)
    lists, number = groups.unique(return_inverse=True)
    lowest, highest = (
        labels.new_zeros(len(lists)).scatter_reduce_(0, number, labels, reduce, include_self=False)
        for reduce in ("amin", "amax")
    )
    mixed = lowest < highest
    return number, mixed[number], mixed.sum().clamp(min=1)


def ordered_pairs(labels: Tensor, groups: Tensor | None) -> Tensor:
    """Number of i, j of one list with `labels[i] > labels[j]`, or 1: half of all pairs that are no ties."""
    grades = grades_of(labels, groups)
    sizes = grades.grade.bincount()
    lists = sizes.sum()[None] if grades.group is None else grades.group[grades.grade].unique(return_counts=True)[1]
    return ((lists.square().sum() - sizes.square().sum()) // 2).clamp(min=1)


def ranks(scores: Tensor, number: Tensor) -> Tensor:
    """Rank of each row within its list from 0, the highest score first, shape `(batch,)`."""
    order = scores.argsort(descending=True, stable=True)
    order = order[number[order].argsort(stable=True)]
    lists = number[order]
    places = torch.arange(len(order), device=order.device) - torch.searchsorted(lists, lists)
    return torch.empty_like(places).scatter_(0, order, places)


def log_sums(x: Tensor, labels: Tensor, groups: Tensor | None = None, ties: bool = False) -> Tensor:
    """`out[i]` = logsumexp of x over the rows of i's list with a lower label, -inf for none; shape `(batch,)`.

    Args:
        ties: over those with the same label too.
    """
    return _LogSums.apply(x, labels, groups, ties)


class _LogSums(torch.autograd.Function):
    """`log_sums` with `d out[i] / d x[j] = exp(x[j] - out[i])`: sums over i in logarithms too, so nothing overflows."""

    @staticmethod
    def forward(ctx, x: Tensor, labels: Tensor, groups: Tensor | None, ties: bool) -> Tensor:
        ctx.grades, ctx.ties = grades_of(labels, groups), ties
        rows = as_float64(x)[ctx.grades.order]
        out = ctx.grades.lower(ctx.grades.sums(rows), ties)[ctx.grades.grade]
        ctx.save_for_backward(rows, out)
        return torch.empty_like(x).scatter_(0, ctx.grades.order, out.to(x.dtype))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, out = ctx.saved_tensors
        gradient = torch.zeros_like(rows)
        for sign in (1, -1):
            above = (sign * upstream[ctx.grades.order].to(rows.dtype)).clamp(min=0).log() - out
            above = ctx.grades.higher(ctx.grades.sums(above.masked_fill(out == -torch.inf, -torch.inf)), ctx.ties)
            gradient += sign * (rows + above[ctx.grades.grade]).exp()
        return torch.empty_like(upstream).scatter_(0, ctx.grades.order, gradient.to(upstream.dtype)), None, None, None


class _Blocks(torch.autograd.Function):
    """Sum over ordered pairs i, j of `term(rows of i, x[j] - x[i])`, and its gradient, a block of rows at a time."""

    @staticmethod
    def forward(
        ctx, x: Tensor, labels: Tensor, groups: Tensor | None, term: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        total, gradient = x.new_zeros(()), torch.zeros_like(x)
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                terms = term(rows, leaf - leaf[rows, None])  # (rows, batch)
                part = terms.masked_fill(~ordered(labels, groups, rows), 0).sum()
            total += part.detach()
            gradient += torch.autograd.grad(part, leaf)[0]
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None, None
