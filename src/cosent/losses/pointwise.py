"""Pointwise losses: each pair by itself, on its cosine, its logit or its logits. The baselines of CoSENT."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import check_classes, check_targets


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


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`mean of logsumexp(logits[i]) - logits[i, labels[i]]`: logits (batch, classes), labels (batch,), whole numbers.

    Source: https://arxiv.org/abs/1908.10084, section 3 (classification objective); for a cross-encoder of two classes
    https://kexue.fm/archives/9341.
    """
    logits, classes = check_classes(logits, labels, logits.shape[-1])
    return F.cross_entropy(logits, classes)


def binary_cross_entropy_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of log(1 + exp(s)) - t * s` with s = scores (logits), t = labels in 0..1: a sigmoid and cross entropy.

    A grade between 0 and 1 is a soft target. Source: sentence-transformers' `BinaryCrossEntropyLoss`.
    """
    return F.binary_cross_entropy_with_logits(*check_targets(scores, labels))


def mse_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of (s - t)^2` with s = scores (logits), t = labels in 0..1: regression on the label itself."""
    return F.mse_loss(*check_targets(scores, labels))


def joint_cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of one head for two tasks: classes 0-1 for similarity rows, 2-4 for NLI rows.

    A row's softmax runs over the columns of its own task; the others get no gradient from it. Rows weigh the same.

    Args:
        logits: shape `(batch, 5)`.
        labels: shape `(batch,)`, whole numbers: 0, 1 for similarity; 2, 3, 4 for contradiction, neutral, entailment.

    Source: https://kexue.fm/archives/8541; https://github.com/ZhuiyiTechnology/roformer-sim, `train/supervised.py`.
    """
    if logits.shape[1:] != (5,):
        raise ValueError(f"Expected logits (batch, 5), got {tuple(logits.shape)}. Use a head of 5 classes.")
    logits, classes = check_classes(logits, labels, 5)
    is_nli_column = torch.arange(5, device=logits.device) >= 2  # (5,)
    logits = logits.masked_fill((classes >= 2)[:, None] != is_nli_column, -torch.inf)
    return F.cross_entropy(logits, classes)
