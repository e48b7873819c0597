"""Losses on scores, sentence embeddings or logits: pure functions that return a scalar mean or batch loss.

`scores` (`torch.Tensor` of shape `(batch,)`) are similarities, any floating dtype; `labels` (same shape) are the gold
labels, any dtype. Half precision is computed in float32, float64 stays float64, and the result has that dtype. A NaN
score gives a NaN loss: it is never hidden. The value check of the labels waits once for the device.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import (
    at_least_float32,
    check_classes,
    check_embeddings,
    check_scores,
    check_sentence_vectors,
    check_targets,
    refuse,
)


def cosent_loss(scores: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """Ranks the pairs of a batch against one another: a pair with a higher label shall have a higher score.

    `log(1 + sum over all i, j with labels[i] > labels[j] of exp(scale * (scores[j] - scores[i])))`

    O(batch log batch) time and O(batch) memory. Only the order of the labels counts and ties are not compared. Without
    an ordered pair (one pair, equal labels, an empty batch) the loss and its gradient are exactly 0. On CUDA the sums
    are atomic: bit-equal reruns need `torch.use_deterministic_algorithms`.

    Args:
        scores, labels: as above; labels are any numbers that rise with similarity.
        scale: inverse temperature: 20 for cosines, 1 for the logit of a cross-encoder.

    Raises:
        ValueError: shapes that differ, scores that are not floating, a NaN label.

    Source: https://kexue.fm/archives/8847; https://doi.org/10.1109/TASLP.2024.3402087.
    """
    scores = check_scores(scores, labels, is_mean=False)
    refuse(labels.isnan(), labels, "numbers", "NaN has no rank, so these pairs would be compared at random")
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
        labels, order = labels.sort()  # equal labels side by side: all that follows reads memory in order
        grades, grade = labels.unique_consecutive(return_inverse=True)  # ascending (grades,), (batch,)
        x = scores.index_select(0, order)  # index_select: a fifth faster than [order] on a CPU
        x = scale * (x if x.device.type == "mps" else x.double())  # MPS has no float64
        nothing = x.new_full((1,), -torch.inf)
        below, above = _group_logsumexp(x, grade, len(grades)), _group_logsumexp(-x, grade, len(grades))
        lower = torch.cat((nothing, below.logcumsumexp(0)))[:-1]
        higher = torch.cat((nothing, above.flip(0).logcumsumexp(0)))[:-1].flip(0)
        loss = torch.cat((x.new_zeros(1), lower + above)).logsumexp(0)
        gradient = (higher - loss).index_select(0, grade).add_(x).exp_()
        gradient -= (lower - loss).index_select(0, grade).sub_(x).exp_()
        gradient = gradient.mul_(scale).to(scores.dtype)
        ctx.save_for_backward(torch.empty_like(gradient).scatter_(0, order, gradient))
        return loss.to(scores.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream * gradient, None, None


def _group_logsumexp(x: Tensor, group: Tensor, groups: int) -> Tensor:
    """`out[g] = logsumexp of x[group == g]` for non-empty groups: (batch,), (batch,) -> (groups,)."""
    top = x.new_full((groups,), -torch.inf).scatter_reduce_(0, group, x, "amax")
    return torch.zeros_like(top).scatter_add_(0, group, (x - top.index_select(0, group)).exp_()).log_().add_(top)


def has_ordered_pair(labels: Tensor) -> Tensor:
    """Whether two labels of a batch differ, without which `cosent_loss` teaches nothing: (batch,) -> bool scalar.

    Stays on the labels' device and does not wait for it. False for one pair and for an empty batch.
    """
    return (labels != labels[:1]).any()


def cosine_linear_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of t * (1 - c) + (1 - t) * (1 + c)` with c = scores (cosines), t = labels in 0..1.

    Raises `ValueError` like every mean loss here: shapes that differ, labels outside 0..1, an empty batch.
    Source: https://kexue.fm/archives/8847, eq. 1.
    """
    c, t = check_targets(scores, labels)
    return (t * (1 - c) + (1 - t) * (1 + c)).mean()


def cosine_squared_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of t * (1 - c)^2 + (1 - t) * c^2` with c = scores (cosines), t = labels in 0..1.

    Source: https://kexue.fm/archives/8847, eq. 2.
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


def angle_loss(embeddings: Tensor, labels: Tensor, scale: float = 20.0, cosine_weight: float = 1.0) -> Tensor:
    """`cosent_loss(|cos + sin|, labels, scale) + cosine_weight * cosent_loss(cos, labels, scale)`.

    The halves of an embedding are the real and imaginary part of a complex vector. With u, v of length 1,
    `cos = re(u) . re(v) + im(u) . im(v)` and `sin = im(u) . re(v) - re(u) . im(v)`. A zero vector has cos = sin = 0
    and a finite gradient. AnglE's third term (in-batch negatives) is left out.

    Args:
        embeddings: sentence embeddings of shape `(batch, 2, hidden)`, hidden even.
        labels: shape `(batch,)`, any numbers that rise with similarity.
        scale: inverse temperature of both terms.
        cosine_weight: weight of the term on cosines; 0 leaves it out.

    Raises:
        ValueError: another shape, an odd hidden size, a NaN label.

    Source: https://arxiv.org/abs/2309.12871, section 3; https://github.com/SeanLee97/AnglE, `angle_emb/loss.py`.
    """
    check_embeddings(embeddings)
    if embeddings.shape[-1] % 2:
        raise ValueError(
            f"angle_loss expects an even hidden size, got {embeddings.shape[-1]}. Its two halves are a real and an "
            "imaginary part: with a padded zero the angles would depend on the padding. Use another loss or encoder."
        )
    embeddings = at_least_float32(embeddings)
    norm = embeddings.norm(dim=-1, keepdim=True)
    u, v = (embeddings / norm.masked_fill(norm == 0, 1)).unbind(1)  # 2 x (batch, hidden)
    (u_re, u_im), (v_re, v_im) = u.chunk(2, dim=-1), v.chunk(2, dim=-1)  # 4 x (batch, hidden / 2)
    cosines = (u * v).sum(-1)  # (batch,)
    sines = (u_im * v_re - u_re * v_im).sum(-1)
    loss = cosent_loss((cosines + sines).abs(), labels, scale)
    return loss + cosine_weight * cosent_loss(cosines, labels, scale) if cosine_weight else loss


def synonym_loss(embeddings: Tensor, scale: float = 20.0) -> Tensor:
    """Mean cross entropy of finding each sentence's synonym among all other sentences of the batch by cosine.

    `mean over i of log(sum over j != i of exp(scale * cos(i, j))) - scale * cos(i, synonym of i)`

    Args:
        embeddings: shape `(sentences, hidden)`, synonyms side by side: 2k and 2k + 1.
        scale: inverse temperature.

    Raises:
        ValueError: an odd number of sentences, or none.

    Source: https://kexue.fm/archives/8454; https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`.
    """
    check_sentence_vectors(embeddings)
    if len(embeddings) % 2 or not len(embeddings):
        raise ValueError(
            f"synonym_loss expects pairs of synonyms side by side, got {len(embeddings)} sentences. The last one would "
            "have no synonym, or the mean be NaN. Pass whole pairs."
        )
    embeddings = F.normalize(at_least_float32(embeddings), dim=-1)
    similar = (scale * embeddings @ embeddings.T).fill_diagonal_(-torch.inf)  # (sentences, sentences)
    return F.cross_entropy(similar, torch.arange(len(similar), device=similar.device) ^ 1)


def similarity_matrix_loss(embeddings: Tensor, teacher_embeddings: Tensor, weight: float = 100.0) -> Tensor:
    """`weight / n^2 * sum over all i, j of (cos(u_i, u_j) - cos(v_i, v_j))^2`: a teacher's u, a student's v.

    Args:
        embeddings: the student's, shape `(sentences, hidden)`.
        teacher_embeddings: shape `(sentences, hidden of the teacher)`, of the same sentences.
        weight: the lambda of the source.

    Raises:
        ValueError: another number of sentences on one side, or none.

    Source: https://kexue.fm/archives/8454, eq. 3; https://kexue.fm/archives/8541.
    """
    check_sentence_vectors(embeddings)
    check_sentence_vectors(teacher_embeddings)
    if len(embeddings) != len(teacher_embeddings) or not len(embeddings):
        raise ValueError(
            f"similarity_matrix_loss compares the same sentences, got {len(embeddings)} of the student and "
            f"{len(teacher_embeddings)} of the teacher. Cosines of different sentences would be matched, or the mean "
            "be NaN. Pass both for one batch."
        )
    v = F.normalize(at_least_float32(embeddings), dim=-1)
    u = F.normalize(teacher_embeddings.to(v.dtype), dim=-1)
    return weight * (u @ u.T - v @ v.T).square().mean()


def pair_ranking_loss(embeddings: Tensor, teacher_scores: Tensor, scale: float = 20.0) -> Tensor:
    """`cosent_loss` of the pairs' cosines against a teacher's scores, of which the order alone counts.

    The logits of a cross-encoder have no scale that cosines could be fitted to.

    Args:
        embeddings: shape `(2 * pairs, hidden)`, the sentences of a pair side by side.
        teacher_scores: shape `(pairs,)`, any numbers that rise with similarity.
        scale: inverse temperature.
    """
    check_sentence_vectors(embeddings)
    first, second = at_least_float32(embeddings).unflatten(0, (-1, 2)).unbind(1)
    return cosent_loss(F.cosine_similarity(first, second), teacher_scores, scale)


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """`mean of logsumexp(logits[i]) - logits[i, labels[i]]`: logits (batch, classes), labels (batch,), whole numbers.

    Raises `ValueError`: shapes that do not fit, an empty batch, a label that is no whole number in 0..classes - 1.
    Source: https://arxiv.org/abs/1908.10084, section 3 (classification objective); for a cross-encoder of two classes
    https://kexue.fm/archives/9341.
    """
    return F.cross_entropy(*check_classes(logits, labels, logits.shape[-1]))


def binary_cross_entropy_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of log(1 + exp(s)) - t * s` with s = scores (logits), t = labels in 0..1: a sigmoid and cross entropy.

    A grade between 0 and 1 is a soft target. Source: sentence-transformers' `BinaryCrossEntropyLoss`.
    """
    return F.binary_cross_entropy_with_logits(*check_targets(scores, labels))


def mse_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """`mean of (s - t)^2` with s = scores (logits), t = labels in 0..1: regression on the label itself."""
    return F.mse_loss(*check_targets(scores, labels))


def joint_cross_entropy_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of one head for two tasks: classes 0-1 are those of similarity rows, 2-4 those of NLI rows.

    A row's softmax runs over the columns of its own task; the others get no gradient from it. Rows weigh the same.

    Args:
        logits: shape `(batch, 5)`.
        labels: shape `(batch,)`, whole numbers: 0, 1 for similarity; 2, 3, 4 for contradiction, neutral, entailment.

    Raises:
        ValueError: shapes that do not fit, an empty batch, a label that is no class.

    Source: https://kexue.fm/archives/8541; https://github.com/ZhuiyiTechnology/roformer-sim, `train/supervised.py`.
    """
    if logits.shape[1:] != (5,):
        raise ValueError(
            f"Expected logits (batch, 5), got {tuple(logits.shape)}. Rows would be scored by the columns of the other "
            "task. Use a head of 5 classes."
        )
    logits, classes = check_classes(logits, labels, 5)
    is_nli_column = torch.arange(5, device=logits.device) >= 2  # (5,)
    logits = logits.masked_fill((classes >= 2)[:, None] != is_nli_column, -torch.inf)
    return F.cross_entropy(logits, classes)


TOWERS = ("bi_encoder", "cross_encoder")


class Loss(NamedTuple):
    """A loss by name.

    Args:
        function: `(what reads names, labels, **hyper-parameters) -> scalar`.
        reads: `scores` (batch,), `embeddings` (batch, 2, hidden) or `logits` (batch, classes).
        compares_pairs: a batch loss: a batch without `has_ordered_pair` teaches nothing, and the loss of a batch is not
            the mean of the losses of its parts.
        towers: the models it can train.
        classes: logits of a cross-encoder that it trains; a bi-encoder's head is fitted to the labels.
    """

    function: Callable[..., Tensor]
    reads: str
    compares_pairs: bool = False
    towers: tuple[str, ...] = ("bi_encoder",)
    classes: int = 1


LOSSES = {
    "cosent": Loss(cosent_loss, "scores", compares_pairs=True, towers=TOWERS),
    "cosine_linear": Loss(cosine_linear_loss, "scores"),
    "cosine_squared": Loss(cosine_squared_loss, "scores"),
    "cosine_floor": Loss(cosine_floor_loss, "scores"),
    "cosine_mse": Loss(cosine_mse_loss, "scores"),
    "cosine_hinge": Loss(cosine_hinge_loss, "scores"),
    "angle": Loss(angle_loss, "embeddings", compares_pairs=True),
    "sbert": Loss(cross_entropy_loss, "logits"),
    "sbert_joint": Loss(joint_cross_entropy_loss, "logits"),
    "ce": Loss(cross_entropy_loss, "logits", towers=("cross_encoder",), classes=2),
    "ce3": Loss(cross_entropy_loss, "logits", towers=("cross_encoder",), classes=3),
    "bce": Loss(binary_cross_entropy_loss, "scores", towers=("cross_encoder",)),
    "mse": Loss(mse_loss, "scores", towers=("cross_encoder",)),
}
