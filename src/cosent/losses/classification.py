"""Losses that classify a pair or regress its label."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import check_classes, check_targets


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
