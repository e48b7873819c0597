"""Losses of the lab's studies: baselines of CoSENT, and terms that its sources add to Sentence-BERT's head.

cosent train --config cosent_mini --loss lab/losses.py:logistic --loss_args threshold=0.8 --corpus stsb \
    --output_dir runs/logistic

`s` are scores, `t` labels within 0..1; `ranknet` compares all pairs with t[i] > t[j], O(batch^2).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import at_least_float32, check_embeddings, check_groups, check_targets, equal_parts
from cosent.losses.in_batch import SIMILAR_LABEL
from cosent.losses.pointwise import cross_entropy_loss


def sbert_cosine(logits: Tensor, labels: Tensor, scores: Tensor, weight: float = 1.0, floor: float = 0.5) -> Tensor:
    """Sentence-BERT's cross entropy, plus `weight` times the mean of `t * (1 - s) + (1 - t) * max(0, s - floor)`.

    The term of a review of kexue.fm 8847, which gives no weight.
    """
    scores, labels = check_targets(scores, labels)
    term = labels * (1 - scores) + (1 - labels) * (scores - floor).clamp(min=0)
    return cross_entropy_loss(logits, equal_parts(labels, logits.shape[-1])) + weight * term.mean()


def triplet(embeddings: Tensor, labels: Tensor, groups: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of `max(|a - p| - |a - n| + margin, 0)` over similar pairs a, p and the n that each has in the batch.

    Source: https://arxiv.org/abs/1908.10084, section 3, whose every a, p comes with one n. Here the n of a pair are the
    other sides of the pairs whose group differs from its own; each of its sentences is a once.
    """
    check_embeddings(embeddings)
    check_groups(groups, embeddings)
    similar, terms = labels >= SIMILAR_LABEL, []
    for side, other in ((0, 1), (1, 0)):
        anchors, others = (at_least_float32(embeddings[:, place]) for place in (side, other))
        distances = (anchors[similar][:, None] - others).norm(dim=-1)  # (similar, batch)
        negative = groups[similar][:, [side]] != groups[:, other]
        excess = distances[:, similar].diagonal()[:, None] - distances + margin
        terms.append(excess[negative].clamp(min=0))
    terms = torch.cat(terms)
    return terms.sum() / max(1, len(terms))


def ranknet(scores: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """`mean over i, j of log(1 + exp(scale * (s[j] - s[i])))`: each wrong pair weighs the same.

    Source: https://icml.cc/Conferences/2005/proceedings/papers/012_LearningToRank_BurgesEtAl.pdf, eq. 3.
    """
    terms = differences(scores, labels, scale)
    return F.softplus(terms).sum() / (terms > -torch.inf).sum().clamp(min=1)


class Line:
    """`slope * s + offset`, both learnt by Adam next to the encoder; `values` are kept in the run's record.

    A call takes the step of the gradients that the batch before it left. --loss runs this file anew, so that every run
    has a new line.
    """

    def __init__(self):
        self.optimizer: torch.optim.Optimizer | None = None
        self.values: dict[str, float] = {}

    def __call__(self, scores: Tensor, slope: float, offset: float, rates: tuple[float, float]) -> Tensor:
        """The line, from this slope and offset in its first call on; slope and offset have a rate each, 0: fixed."""
        if self.optimizer is None:
            self.line = [torch.tensor(float(value), requires_grad=True) for value in (slope, offset)]
            groups = [{"params": [value], "lr": rate} for value, rate in zip(self.line, rates, strict=True)]
            self.optimizer = torch.optim.Adam(groups)
        elif scores.requires_grad:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.values |= {name: value.item() for name, value in zip(("slope", "offset"), self.line, strict=True)}
        slope, offset = (value.to(scores) for value in self.line)
        return slope * scores + offset


LINE = Line()


def logistic(
    scores: Tensor,
    labels: Tensor,
    scale: float = 20.0,
    threshold: float = 0.5,
    threshold_rate: float = 0.0,
    scale_rate: float = 0.0,
) -> Tensor:
    """`mean of -t log p - (1 - t) log(1 - p)`, `p = sigmoid(scale * (s - threshold))`: pairs one by one.

    Args:
        threshold: where it starts; NaN is the mean score of the first batch.
        threshold_rate, scale_rate: learning rates of `scale * threshold` and of `scale`; 0 leaves them as they start.
    """
    scores, labels = check_targets(scores, labels)
    threshold = float(scores.detach().mean()) if math.isnan(threshold) else threshold
    logits = LINE(scores, scale, -scale * threshold, (scale_rate, threshold_rate))
    return F.binary_cross_entropy_with_logits(logits, labels)


def logistic_mean(scores: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """`logistic` with its threshold fixed at the mean score of the first batch."""
    return logistic(scores, labels, scale, threshold=math.nan)


def line_squared(scores: Tensor, labels: Tensor, rate: float = 0.01) -> Tensor:
    """`mean of (a * s + c - t)^2`, a and c learnt from 1 and 0: regression without a fixed scale and origin."""
    scores, labels = check_targets(scores, labels)
    return (LINE(scores, 1.0, 0.0, (rate, rate)) - labels).square().mean()


def differences(scores: Tensor, labels: Tensor, scale: float) -> Tensor:
    """`[i, j] = scale * (s[j] - s[i])` where `t[i] > t[j]`, -inf elsewhere: (batch, batch)."""
    scores, labels = check_targets(scores, labels)
    return (scale * (scores - scores[:, None])).masked_fill(labels[:, None] <= labels, -torch.inf)


for loss in (logistic, logistic_mean, line_squared):
    loss.learnt = LINE.values  # type: ignore[attr-defined]  # kept in the record of a run
