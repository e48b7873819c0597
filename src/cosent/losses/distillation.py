"""Losses of a student: in-batch synonyms, a teacher's similarity matrix, a teacher's ranking of pairs.

`embeddings` are of shape `(sentences, hidden)`, the sentences of a pair side by side: 2k and 2k + 1. `scale` is the
inverse temperature. An odd number of sentences, or none, raises `ValueError`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosent.losses.checks import at_least_float32, check_embeddings
from cosent.losses.cosent import cosent_loss


def synonym_loss(embeddings: Tensor, scale: float = 20.0) -> Tensor:
    """Mean cross entropy of finding each sentence's synonym among all other sentences of the batch by cosine.

    `mean over i of log(sum over j != i of exp(scale * cos(i, j))) - scale * cos(i, synonym of i)`

    Source: https://kexue.fm/archives/8454; https://github.com/ZhuiyiTechnology/roformer-sim, `train/stage1.py`.
    """
    check_embeddings(embeddings, "sentences, hidden")
    if len(embeddings) % 2 or not len(embeddings):
        raise ValueError(f"synonym_loss expects pairs of synonyms side by side, got {len(embeddings)} sentences.")
    embeddings = F.normalize(at_least_float32(embeddings), dim=-1)
    similar = (scale * embeddings @ embeddings.T).fill_diagonal_(-torch.inf)  # (sentences, sentences)
    return F.cross_entropy(similar, torch.arange(len(similar), device=similar.device) ^ 1)


def similarity_matrix_loss(embeddings: Tensor, teacher_embeddings: Tensor, weight: float = 100.0) -> Tensor:
    """`weight / n^2 * sum over all i, j of (cos(u_i, u_j) - cos(v_i, v_j))^2`, with u the teacher's, v the student's.

    Args:
        teacher_embeddings: shape `(sentences, hidden of the teacher)`, of the same sentences.
        weight: the lambda of the source.

    Source: https://kexue.fm/archives/8454, eq. 3; https://kexue.fm/archives/8541.
    """
    for vectors in (embeddings, teacher_embeddings):
        check_embeddings(vectors, "sentences, hidden")
    if len(embeddings) != len(teacher_embeddings) or not len(embeddings):
        raise ValueError(
            f"similarity_matrix_loss compares the same sentences, got {len(embeddings)} of the student and "
            f"{len(teacher_embeddings)} of the teacher."
        )
    v = F.normalize(at_least_float32(embeddings), dim=-1)
    u = F.normalize(teacher_embeddings.to(v.dtype), dim=-1)
    return weight * (u @ u.T - v @ v.T).square().mean()


def pair_ranking_loss(embeddings: Tensor, teacher_scores: Tensor, scale: float = 20.0) -> Tensor:
    """`cosent_loss` of the pairs' cosines against a teacher's scores: only the order of the scores matters.

    Regression would not do: the logits of a cross-encoder have no scale that cosines could be fitted to.

    Args:
        teacher_scores: shape `(pairs,)`, any numbers that rise with similarity.
    """
    check_embeddings(embeddings, "sentences, hidden")
    first, second = at_least_float32(embeddings).unflatten(0, (-1, 2)).unbind(1)
    return cosent_loss(F.cosine_similarity(first, second), teacher_scores, scale)
