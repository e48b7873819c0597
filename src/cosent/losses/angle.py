"""AnglE: CoSENT on the angle between two complex vectors, CoSENT on the cosine, and in-batch negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import at_least_float32, check_embeddings, check_groups, check_range
from cosent.losses.cosent import COSINE_SCALE, cosent_loss
from cosent.losses.in_batch import SIMILAR_LABEL


def angle_loss(
    embeddings: Tensor,
    labels: Tensor,
    groups: Tensor,
    scale: float = COSINE_SCALE,
    angle_scale: float = COSINE_SCALE,
    cosine_weight: float = 1.0,
    in_batch_weight: float = 1.0,
) -> Tensor:
    """`cosent_loss(|cos + sin|) + cosine_weight * cosent_loss(cos) + in_batch_weight * in_batch_term`.

    The halves of an embedding are the real and imaginary part of a complex vector. With u, v of length 1,
    `cos = re(u) . re(v) + im(u) . im(v)` and `sin = im(u) . re(v) - re(u) . im(v)`. A zero vector has cos = sin = 0
    and a finite gradient.

    Args:
        embeddings: sentence embeddings of shape `(batch, 2, hidden)`, hidden even.
        labels: shape `(batch,)`, 0..1, rising with similarity.
        groups: int64 of shape `(batch, 2)`, see `losses.in_batch`.
        scale: inverse temperature of the terms on cosines.
        angle_scale: that of the term on angles.
        cosine_weight, in_batch_weight: 0 leaves a term out.

    Source: https://arxiv.org/abs/2309.12871, section 3; https://github.com/SeanLee97/AnglE, `angle_emb/loss.py`, with
    the defaults of its `train_cli.py` today: every weight 1, every temperature 1 / 20. The published Chinese models had
    an angle scale of 1 and an in-batch weight of 5, 2, 2 and 0 for ATEC, BQ, LCQMC and PAWSX (`examples/*.ipynb`).
    """
    check_embeddings(embeddings)
    if embeddings.shape[-1] % 2:
        raise ValueError(f"angle_loss needs an even hidden size, got {embeddings.shape[-1]}. Use another loss.")
    embeddings = at_least_float32(embeddings)
    norm = embeddings.norm(dim=-1, keepdim=True)
    vectors = embeddings / norm.masked_fill(norm == 0, 1)  # (batch, 2, hidden)
    u, v = vectors.unbind(1)  # (batch, hidden) each
    (u_re, u_im), (v_re, v_im) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)  # 4 x (batch, hidden / 2)
    cosines = (u * v).sum(-1)  # (batch,)
    sines = (u_im * v_re - u_re * v_im).sum(-1)
    loss = cosent_loss((cosines + sines).abs(), labels, angle_scale)
    if cosine_weight:
        loss = loss + cosine_weight * cosent_loss(cosines, labels, scale)
    if in_batch_weight:
        loss = loss + in_batch_weight * in_batch_term(vectors, labels, groups, scale)
    return loss


def in_batch_term(vectors: Tensor, labels: Tensor, groups: Tensor, scale: float) -> Tensor:
    """Mean cross entropy, over all 2 * batch sentences, of finding the partner of a similar pair among all others.

    The sentences of a pair that is not similar add 0, and stay as negatives of the others. Sentences known to be
    similar, which have one group, are no negatives of one another. The authors' code knows 0 and 1 only: it takes any
    whole label but 0 for similar, and keeps repeated sentences as negatives.

    Args:
        vectors: of length 1, shape `(batch, 2, hidden)`.
    """
    check_groups(groups, vectors)
    check_range(labels)
    flat, group = vectors.flatten(0, 1), groups.flatten()  # (2 * batch, hidden), (2 * batch,)
    rows = torch.arange(len(flat), device=flat.device)
    partner = rows ^ 1
    hidden = group[:, None] == group  # (2 * batch, 2 * batch), the sentence itself too
    hidden[rows, partner] = False
    logits = (scale * flat @ flat.T).masked_fill(hidden, -torch.inf)
    similar = rows[(labels >= SIMILAR_LABEL).repeat_interleave(2)]
    return F.cross_entropy(logits[similar], partner[similar], reduction="sum") / max(1, len(flat))
