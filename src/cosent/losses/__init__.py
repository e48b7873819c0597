"""The losses of this project by name.

All raise `ValueError` for shapes that do not fit, for labels that are NaN or outside of what they document, and, if
they are means, for an empty batch.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from cosent.losses.angle import angle_loss
from cosent.losses.classification import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)
from cosent.losses.cosent import LOGIT_SCALE, cosent_loss
from cosent.losses.cosine import (
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
)
from cosent.losses.in_batch import cosent_in_batch_loss, cosent_infonce_loss, infonce_loss

TOWERS = ("bi_encoder", "cross_encoder")


class Loss(NamedTuple):
    """A loss by name.

    Args:
        function: `(values of the kind in reads, labels, **hyper-parameters) -> scalar`; with `compares_sentences`
            `(embeddings, labels, groups, **hyper-parameters)`. What a model or a batch has is passed by its name.
        reads: `scores` (batch,), `embeddings` (batch, 2, hidden) or `logits` (batch, classes).
        compares_pairs: whether pairs of a batch are ranked against one another. Then a batch without
            `has_ordered_pair` teaches nothing, and the loss of a batch is not the mean of the losses of its parts.
        compares_sentences: whether those of different pairs are compared too. Then pairs of one label can teach, and
            the loss has to know which sentences are similar.
        towers: the models it can train.
        classes: number of logits of a cross-encoder; the head of a bi-encoder is fitted to the labels.
        tower_defaults: by tower, hyper-parameters whose default differs there from that of `function`.
    """

    function: Callable[..., Tensor]
    reads: str
    compares_pairs: bool = False
    compares_sentences: bool = False
    towers: tuple[str, ...] = ("bi_encoder",)
    classes: int = 1
    tower_defaults: Mapping[str, Mapping[str, float]] = {}


LOSSES = {
    "cosent": Loss(
        cosent_loss,
        "scores",
        compares_pairs=True,
        towers=TOWERS,
        tower_defaults={"cross_encoder": {"scale": LOGIT_SCALE}},
    ),
    "cosine_linear": Loss(cosine_linear_loss, "scores"),
    "cosine_squared": Loss(cosine_squared_loss, "scores"),
    "cosine_floor": Loss(cosine_floor_loss, "scores"),
    "cosine_mse": Loss(cosine_mse_loss, "scores"),
    "cosine_hinge": Loss(cosine_hinge_loss, "scores"),
    "angle": Loss(angle_loss, "embeddings", compares_pairs=True, compares_sentences=True),
    "cosent_in_batch": Loss(cosent_in_batch_loss, "embeddings", compares_pairs=True, compares_sentences=True),
    "cosent_infonce": Loss(cosent_infonce_loss, "embeddings", compares_pairs=True, compares_sentences=True),
    "infonce": Loss(infonce_loss, "embeddings", compares_pairs=True, compares_sentences=True),
    "simcse": Loss(infonce_loss, "embeddings", compares_pairs=True, compares_sentences=True),  # each sentence twice
    "sbert": Loss(cross_entropy_loss, "logits"),
    "sbert_regression": Loss(cosine_squared_loss, "scores"),
    "sbert_joint": Loss(joint_cross_entropy_loss, "logits"),
    "ce": Loss(cross_entropy_loss, "logits", towers=("cross_encoder",), classes=2),
    "ce3": Loss(cross_entropy_loss, "logits", towers=("cross_encoder",), classes=3),
    "bce": Loss(binary_cross_entropy_loss, "scores", towers=("cross_encoder",)),
    "mse": Loss(mse_loss, "scores", towers=("cross_encoder",)),
}
