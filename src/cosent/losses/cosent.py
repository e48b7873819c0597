"""The CoSENT loss, and what all losses of this folder share: pure functions that return a scalar mean or batch loss.

`scores` (`torch.Tensor` of shape `(batch,)`) are similarities, any floating dtype; `labels` (same shape) are the gold
labels, any dtype. Half precision is computed in float32, float64 stays float64, and the result has that dtype. A NaN
score returns a NaN loss: it is never hidden. Checking the values of the labels synchronises with the device once.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cosent.losses.checks import check_pair_groups, check_range, check_scores, refuse

# Inverse temperature. kexue.fm 8847 multiplies cosines, which lie within -1 and 1, by 20; the logit of a cross-encoder
# has no bounds and finds its own scale (kexue.fm 9341).
COSINE_SCALE, LOGIT_SCALE = 20.0, 1.0


def cosent_loss(
    scores: Tensor,
    labels: Tensor,
    scale: float = COSINE_SCALE,
    groups: Tensor | None = None,
    weights: Tensor | None = None,
    margin: float = 0.0,
    top_k: int = 0,
    focal_gamma: float = 0.0,
    curriculum: float = 1.0,
) -> Tensor:
    """Ranks the pairs of a batch: pairs with higher labels should score higher.

    `log(1 + sum over all i, j with labels[i] > labels[j] of exp(scale * (scores[j] - scores[i])))`

    O(batch log batch) time and O(batch) memory. Only the order of the labels counts and ties are not compared. Without
    an ordered pair (one pair, equal labels, an empty batch) the loss and its gradient are exactly 0. On CUDA the sums
    are atomic: bit-equal reruns need `torch.use_deterministic_algorithms`.

    Args:
        scores, labels: as above; labels are any numbers that rise with similarity.
        scale: inverse temperature, `LOGIT_SCALE` for the logit of a cross-encoder.
        groups: whole numbers of shape `(batch,)`; the sum runs over i, j of one group only. Default: one group.
        weights: shape `(batch,)`, at least 0; the term of i, j is multiplied by `weights[i] * weights[j]`, an offset
            `ln(weights)` in both exponents.
        margin: adds `margin * (labels[i] - labels[j])` to the difference, by which the scores should differ.
        top_k: compares each pair with the `top_k` highest scores of lower labels alone, in O(batch^2); 0 for all.
        focal_gamma: weights `|labels - scores| ** focal_gamma`, without gradient; labels within 0..1.
        curriculum: share of the pairs that are compared, the easiest by `|labels - scores|`; labels within 0..1.

    Source: https://kexue.fm/archives/8847; https://doi.org/10.1109/TASLP.2024.3402087.
    """
    scores = check_scores(scores, labels, is_mean=False)
    refuse(labels.isnan(), labels, "numbers")
    check_pair_groups(groups, labels)
    offsets = None if weights is None else weights.log()
    if focal_gamma or curriculum < 1:
        easy = _offsets_by_difficulty(scores.detach(), labels, focal_gamma, curriculum)
        offsets = easy if offsets is None else offsets + easy
    if margin:
        scores = scores - margin * labels.to(scores.dtype)
    if top_k:
        return _hardest(scale * scores, labels, groups, offsets, top_k)
    return _CosentKernel.apply(scores, labels, scale, groups, offsets)


def _offsets_by_difficulty(scores: Tensor, labels: Tensor, gamma: float, share: float) -> Tensor:
    """`gamma * ln(difficulty)`, difficulty = |labels - scores|; -inf for all but the easiest `share` of the rows."""
    check_range(labels)
    difficulty = (labels - scores).abs()
    offsets = gamma * difficulty.clamp(min=torch.finfo(difficulty.dtype).tiny).log()
    if share < 1 and len(labels):
        hardest = difficulty.sort().values[math.ceil(share * len(labels)) - 1]
        offsets = offsets.masked_fill(difficulty > hardest, -torch.inf)
    return offsets


def _hardest(x: Tensor, labels: Tensor, groups: Tensor | None, offsets: Tensor | None, top_k: int) -> Tensor:
    """CoSENT of x = scale * scores in which each row is compared with the `top_k` highest ones of a lower label."""
    low, high = (x, x) if offsets is None else (x + offsets, x - offsets)
    terms = (low[None, :] - high[:, None]).masked_fill(~ordered(labels, groups), -torch.inf)
    hardest = terms.topk(min(top_k, len(x)), dim=1).values  # (batch, top_k)
    return torch.cat((x.new_zeros(1), hardest.flatten())).logsumexp(0)


def ordered(labels: Tensor, groups: Tensor | None, rows: slice = slice(None)) -> Tensor:
    """Whether `labels[i] > labels[j]` within a group, bool of shape `(rows, batch)`."""
    higher = labels[rows, None] > labels
    return higher if groups is None else higher & (groups[rows, None] == groups)


class _CosentKernel(torch.autograd.Function):
    """`log(1 + sum over labels[i] > labels[j] of exp(x[j] - x[i]))`, x = scale * scores, with a closed-form gradient.

    Equal labels form a grade, and the sum over pairs of grades needs two numbers of each: logsumexp(x), logsumexp(-x).
    With `higher[g]` = logsumexp of -x over all higher grades and `lower[g]` = logsumexp of x over all lower ones,
    `d loss / d x[i] = exp(x[i] + higher - loss) - exp(lower - x[i] - loss)`: every exponent is <= 0, nothing overflows.
    Offsets are added to x and to -x. float64 inside, because 1e6 terms added in float32 leave a gradient wrong by 2e-4.
    """

    @staticmethod
    def forward(
        ctx, scores: Tensor, labels: Tensor, scale: float, groups: Tensor | None, offsets: Tensor | None
    ) -> Tensor:
        grades = grades_of(labels, groups)
        low = scale * as_float64(scores.index_select(0, grades.order))
        high = -low
        if offsets is not None:
            offsets = offsets.to(low.dtype).index_select(0, grades.order)
            low, high = low + offsets, high + offsets
        below, above = grades.sums(low), grades.sums(high)
        lower, higher = grades.lower(below), grades.higher(above)
        loss = torch.cat((low.new_zeros(1), lower + above)).logsumexp(0)
        gradient = (higher - loss).index_select(0, grades.grade).add_(low).exp_()
        gradient -= (lower - loss).index_select(0, grades.grade).add_(high).exp_()
        gradient = gradient.mul_(scale).to(scores.dtype)
        ctx.save_for_backward(torch.empty_like(gradient).scatter_(0, grades.order, gradient))
        return loss.to(scores.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None, None, None


class Grades(NamedTuple):
    """Rows sorted by group and label; equal labels of a group form a grade.

    Args:
        order: the rows, shape `(batch,)`.
        grade: number of the grade of each sorted row, ascending.
        number: of grades.
        group: group of each grade, shape `(grades,)`; None for a single one.
    """

    order: Tensor
    grade: Tensor
    number: int
    group: Tensor | None

    def sums(self, x: Tensor) -> Tensor:
        """Logsumexp of sorted rows by grade: (batch,) -> (grades,)."""
        return _group_logsumexp(x, self.grade, self.number)

    def lower(self, sums: Tensor, ties: bool = False) -> Tensor:
        """Logsumexp over all lower grades of a group, with `ties` its own too: (grades,) -> (grades,)."""
        return _running_logsumexp(sums, self.group, ties)

    def higher(self, sums: Tensor, ties: bool = False) -> Tensor:
        """Logsumexp over all higher grades of a group, as `lower`."""
        group = None if self.group is None else self.group.flip(0)
        return _running_logsumexp(sums.flip(0), group, ties).flip(0)


def grades_of(labels: Tensor, groups: Tensor | None = None) -> Grades:
    if groups is None:
        labels, order = labels.sort()  # equal labels become neighbours, so everything below reads memory in order
        grades, grade = labels.unique_consecutive(return_inverse=True)
        return Grades(order, grade, len(grades), None)
    order = labels.argsort(stable=True)
    order = order[groups[order].argsort(stable=True)]
    labels, groups = labels[order], groups[order]
    starts = torch.ones_like(groups, dtype=torch.bool)  # of grades
    starts[1:] = (labels[1:] != labels[:-1]) | (groups[1:] != groups[:-1])
    group = groups[starts]
    return Grades(order, starts.cumsum(0) - 1, len(group), group)


def as_float64(values: Tensor) -> Tensor:
    return values if values.device.type == "mps" else values.double()  # MPS has no float64


def _running_logsumexp(x: Tensor, group: Tensor | None, ties: bool) -> Tensor:
    """Logsumexp of the grades before each one in its group, with `ties` its own too, by doubling: O(n log n)."""
    if group is None:
        sums = x.logcumsumexp(0)
        return sums if ties else torch.cat((x.new_full((1,), -torch.inf), sums))[:-1]
    sums, step = x, 1
    while step < len(x):
        both = torch.logaddexp(sums[step:], sums[:-step])
        sums = torch.cat((sums[:step], torch.where(group[step:] == group[:-step], both, sums[step:])))
        step *= 2
    if ties or not len(x):
        return sums
    before = torch.where(group[1:] == group[:-1], sums[:-1], -torch.inf)
    return torch.cat((x.new_full((1,), -torch.inf), before))


def _group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Logsumexp by group, `out[g] = logsumexp of x[group == g]`, no group empty: (batch,), (batch,) -> (groups,)."""
    top = x.new_full((groups,), -torch.inf).scatter_reduce_(0, group, x, "amax")
    top = top.clamp_(min=torch.finfo(x.dtype).min)  # of rows of weight 0, -inf
    return torch.zeros_like(top).scatter_add_(0, group, (x - top.index_select(0, group)).exp_()).log_().add_(top)


def has_ordered_pair(labels: Tensor) -> Tensor:
    """Whether any two labels of a batch differ: (batch,) -> bool scalar. If not, `cosent_loss` teaches nothing.

    Stays on the labels' device and does not wait for it. False for one pair and for an empty batch.
    """
    return (labels != labels[:1]).any()
