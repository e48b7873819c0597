"""Naive losses on the cosine of a pair, the baselines that CoSENT is compared with."""

from torch import Tensor

from cosent.losses.checks import check_targets


def cosine_linear_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of t * (1 - c) + (1 - t) * (1 + c)` with c = scores (cosines), t = labels in 0..1.

    Source: https://kexue.fm/archives/8847, eq. 1.
    """
    c, t = check_targets(scores, labels)
    return (t * (1 - c) + (1 - t) * (1 + c)).mean()


def cosine_squared_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of t * (1 - c)^2 + (1 - t) * c^2` with c = scores (cosines), t = labels in 0..1.

    For any t this is `(c - t)^2 + t (1 - t)`, Sentence-BERT's regression objective up to a constant: the same gradient,
    and `sbert_regression` is another name for it. For t of 0 or 1 the two are equal.

    Source: https://kexue.fm/archives/8847, eq. 2; https://arxiv.org/abs/1908.10084, section 3 (regression objective).
    """
    c, t = check_targets(scores, labels)
    return (t * (1 - c).square() + (1 - t) * c.square()).mean()


def cosine_floor_loss(scores: Tensor, labels: Tensor, floor: float = 0.7) -> Tensor:
    """`mean of t * (1 - c) + (1 - t) * max(c, floor)` with c = scores (cosines), t = labels in 0..1.

    A negative pair below `floor` has no gradient. Source: https://kexue.fm/archives/8847, eq. 3.
    """
    c, t = check_targets(scores, labels)
    return (t * (1 - c) + (1 - t) * c.clamp(min=floor)).mean()


def cosine_mse_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of (c - (2 * t - 1))^2` with c = scores (cosines), t = labels in 0..1: regression to -1..1.

    The source has t (1 - c)^2 + (1 - t) (1 + c)^2. That is the same number for t of 0 or 1; for a grade between it is
    larger by the constant 4 t (1 - t), so the gradient is the same for every t, and only this form reaches 0.

    Source: https://kexue.fm/archives/8541, second form.
    """
    c, t = check_targets(scores, labels)
    return (c - (2 * t - 1)).square().mean()


def cosine_hinge_loss(scores: Tensor, labels: Tensor, upper: float = 0.9, lower: float = 0.1) -> Tensor:
    """`mean of t * max(upper - c, 0) + (1 - t) * max(c - lower, 0)` with c = scores (cosines), t = labels in 0..1.

    Source: https://kexue.fm/archives/8541, third form.
    """
    c, t = check_targets(scores, labels)
    return (t * (upper - c).relu() + (1 - t) * (c - lower).relu()).mean()
