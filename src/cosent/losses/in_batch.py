"""Losses that also compare sentences of different pairs: a batch of B pairs holds B (B - 1) in-batch negatives.

`embeddings` (`torch.Tensor` of shape `(batch, 2, hidden)`) are those of B pairs, `labels` (shape `(batch,)`) lie in
0..1 and rise with similarity, `groups` (int64 of shape `(batch, 2)`) say which sentences are known to be similar: equal
numbers, equal or similar sentences, see `data.corpus`. The first sentence of a pair and the second one of another pair
are an in-batch negative if their groups differ. Half precision is computed in float32; without negatives, or without
the pairs that a loss compares with them, the loss and its gradient are exactly 0. Time and memory are O(batch^2).
`scale` is the inverse temperature.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import at_least_float32, check_embeddings, check_groups, check_range, check_scores
from cosent.losses.cosent import COSINE_SCALE, cosent_loss

SIMILAR_LABEL = 0.8  # the least of similar sentences; in float32, `training.objective.scaled` keeps labels on its side


def infonce_loss(
    embeddings: Tensor,
    labels: Tensor,
    groups: Tensor,
    scale: float = COSINE_SCALE,
) -> Tensor:
    """Mean cross entropy of retrieving each sentence of a similar pair by the other, among all sentences.

    `mean over similar i of (log(sum over j of exp(scale * cos(u[i], v[j]))) + log(sum over j of exp(scale * cos(u[j],
    v[i])))) / 2 - scale * cos(u[i], v[i])`, where j runs over i and its negatives. Pairs that are not similar add
    columns: those of a hard negative `(u[i], n, 0)` have n.

    Source: https://arxiv.org/abs/1807.03748; as https://arxiv.org/abs/2104.08821, eq. 5, in both directions. The value
    is that of sentence-transformers' `MultipleNegativesSymmetricRankingLoss` where all pairs are similar, all groups
    differ.
    """
    cosines, labels, same_group = compared(embeddings, labels, groups)
    similar = (labels >= SIMILAR_LABEL).nonzero()[:, 0]
    logits = (scale * cosines).masked_fill(same_group.fill_diagonal_(False), -torch.inf)
    sums = [F.cross_entropy(rows[similar], similar, reduction="sum") for rows in (logits, logits.T)]
    return torch.stack(sums).sum() / max(1, 2 * len(similar))


def cosent_in_batch_loss(
    embeddings: Tensor,
    labels: Tensor,
    groups: Tensor,
    scale: float = COSINE_SCALE,
    negative_weight: float = 0.1,
) -> Tensor:
    """CoSENT with in-batch negatives as a grade below all labels: every pair of the batch should score higher.

    `log(1 + sum over labels[i] > labels[j] of exp(scale * (s[j] - s[i])) + w * sum over all i and negatives k, l of
    exp(scale * (cos(u[k], v[l]) - s[i])))` with s[i] = cos(u[i], v[i]) and w = negative_weight * batch / number of
    negatives: all negatives together count as much as `negative_weight` times the pairs of the batch. That is
    `cosent_loss` of all these cosines, with `log(w) / scale` added to those of negatives.
    """
    cosines, labels, same_group = compared(embeddings, labels, groups)
    scores, negatives = cosines.diagonal(), cosines[~same_group]
    weight = negative_weight * max(1, len(scores)) / max(1, len(negatives))
    below = (scale * negatives).logsumexp(0) + math.log(weight)
    return torch.logaddexp(cosent_loss(scores, labels, scale), below + (-scale * scores).logsumexp(0))


def cosent_infonce_loss(
    embeddings: Tensor,
    labels: Tensor,
    groups: Tensor,
    scale: float = COSINE_SCALE,
    contrastive_weight: float = 1.0,
) -> Tensor:
    """`cosent_loss(cosines, labels, scale) + contrastive_weight * infonce_loss(embeddings, labels, groups, scale)`."""
    embeddings = at_least_float32(embeddings)  # once, so that both gradients are added in float32
    first, second = embeddings.unbind(1)
    ranking = cosent_loss(F.cosine_similarity(first, second), labels, scale)
    contrastive = infonce_loss(embeddings, labels, groups, scale)
    return ranking + contrastive_weight * contrastive


def compared(embeddings: Tensor, labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Checks a batch; returns cosines `[i, j] = cos(u[i], v[j])`, labels, and which i and j are no negatives."""
    check_embeddings(embeddings)
    check_groups(groups, embeddings)
    u, v = F.normalize(at_least_float32(embeddings), dim=-1).unbind(1)  # (batch, hidden) each
    check_scores(u[:, 0], labels, is_mean=False)
    check_range(labels)
    same_group = (groups[:, :1] == groups[:, 1]).fill_diagonal_(True)
    return u @ v.T, labels, same_group
