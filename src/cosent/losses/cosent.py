"""The CoSENT loss. All losses of this folder are pure functions that return a scalar.

`scores` (`torch.Tensor` of shape `(batch,)`) are similarities, any floating dtype; `labels` (same shape) are the gold
labels, any dtype. Half precision is computed in float32, float64 stays float64, and the result has that dtype. A NaN
score returns a NaN loss: it is never hidden. Checking the values of the labels synchronises with the device once.
"""

import torch
from torch import Tensor

from cosent.losses.checks import check_scores, refuse

# Inverse temperature. kexue.fm 8847 multiplies cosines, which lie within -1 and 1, by 20; the logit of a cross-encoder
# has no bounds and finds its own scale (kexue.fm 9341).
COSINE_SCALE, LOGIT_SCALE = 20.0, 1.0


def cosent_loss(scores: Tensor, labels: Tensor, scale: float = COSINE_SCALE) -> Tensor:
    """Ranks the pairs of a batch: pairs with higher labels should score higher.

    `log(1 + sum over all i, j with labels[i] > labels[j] of exp(scale * (scores[j] - scores[i])))`

    O(batch log batch) time and O(batch) memory. Only the order of the labels counts and ties are not compared. Without
    an ordered pair (one pair, equal labels, an empty batch) the loss and its gradient are exactly 0. On CUDA the sums
    are atomic: bit-equal reruns need `torch.use_deterministic_algorithms`.

    Args:
        scores, labels: as above; labels are any numbers that rise with similarity.
        scale: inverse temperature, `LOGIT_SCALE` for the logit of a cross-encoder.

    Source: https://kexue.fm/archives/8847; https://doi.org/10.1109/TASLP.2024.3402087.
    """
    scores = check_scores(scores, labels, is_mean=False)
    refuse(labels.isnan(), labels, "numbers")
    return _CosentKernel.apply(scores, labels, scale)


class _CosentKernel(torch.autograd.Function):
    """`log(1 + sum over labels[i] > labels[j] of exp(x[j] - x[i]))`, x = scale * scores, with a closed-form gradient.

    Equal labels form a grade, and the sum over pairs of grades needs two numbers of each: logsumexp(x), logsumexp(-x).
    With `higher[g]` = logsumexp of -x over all higher grades and `lower[g]` = logsumexp of x over all lower ones,
    `d loss / d x[i] = exp(x[i] + higher - loss) - exp(lower - x[i] - loss)`: every exponent is <= 0, nothing overflows.
    float64 inside, because 1e6 terms added in float32 leave a gradient wrong by 2e-4.
    """

    @staticmethod
    def forward(ctx, scores: Tensor, labels: Tensor, scale: float) -> Tensor:
        labels, order = labels.sort()  # equal labels become neighbours, so everything below reads memory in order
        grades, grade = labels.unique_consecutive(return_inverse=True)
        exact = scores if scores.device.type == "mps" else scores.double()  # MPS has no float64
        low = scale * exact.index_select(0, order)
        below, above = (_group_logsumexp(x, grade, len(grades)) for x in (low, -low))
        lower, higher = _running_logsumexp(below), _running_logsumexp(above.flip(0)).flip(0)
        loss = torch.cat((low.new_zeros(1), lower + above)).logsumexp(0)
        gradient = (higher - loss).index_select(0, grade).add_(low).exp_()
        gradient -= (lower - loss).index_select(0, grade).sub_(low).exp_()
        gradient = gradient.mul_(scale).to(scores.dtype)
        ctx.save_for_backward(torch.empty_like(gradient).scatter_(0, order, gradient))
        return loss.to(scores.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


def _running_logsumexp(x: Tensor) -> Tensor:
    """Logsumexp of the grades before each one: (grades,) -> (grades,)."""
    return torch.cat((x.new_full((1,), -torch.inf), x.logcumsumexp(0)))[:-1]


def _group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """Logsumexp by group, `out[g] = logsumexp of x[group == g]`, no group empty: (batch,), (batch,) -> (groups,)."""
    top = x.new_full((groups,), -torch.inf).scatter_reduce_(0, group, x, "amax")
    return torch.zeros_like(top).scatter_add_(0, group, (x - top.index_select(0, group)).exp_()).log_().add_(top)
