"""Input checks of the losses: shapes, dtypes and label values."""

import torch
from torch import Tensor


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def check_scores(values: Tensor, labels: Tensor, dims: int = 1, is_mean: bool = True) -> Tensor:
    """Checks scores (batch,), or logits (batch, classes) for `dims=2`, against labels (batch,); returns them upcast."""
    if values.ndim != dims or labels.shape != values.shape[:1] or not values.is_floating_point():
        expected = "scores (batch,)" if dims == 1 else "logits (batch, classes)"
        raise ValueError(
            f"Expected floating {expected} and labels (batch,), got {values.dtype} {tuple(values.shape)} and "
            f"{tuple(labels.shape)}. `squeeze(-1)` a column."
        )
    if is_mean and not len(labels):
        raise ValueError("Expected at least one pair, got an empty batch, whose mean is NaN.")
    return at_least_float32(values)


def check_targets(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    scores = check_scores(scores, labels)
    check_range(labels)
    return scores, labels.to(scores.dtype)


def check_range(labels: Tensor) -> None:
    outside = ~((labels >= 0) & (labels <= 1))  # NaN too
    refuse(outside, labels, "within 0..1")


def check_classes(logits: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    logits = check_scores(logits, labels, dims=2)
    no_class = ~((labels >= 0) & (labels < classes) & (labels % 1 == 0))  # NaN too
    refuse(no_class, labels, "whole numbers below the number of classes")
    return logits, labels.long()


def equal_parts(labels: Tensor, classes: int) -> Tensor:
    """Class of each label within 0..1, from 0: the range in equal parts, each with its upper end; labels' dtype.

    Two classes of the grades 0..5, scaled to 0..1, split them at 2.5, as the Sentence-BERT of kexue.fm 8847 does on
    STS-B; six make a class of every grade.

    Source: https://github.com/bojone/CoSENT, `sbert.py`.
    """
    return (((labels * classes * 1e6).round() / 1e6).ceil() - 1).clamp(0, classes - 1)


def check_embeddings(embeddings: Tensor, shape: str = "batch, 2, hidden") -> None:
    sizes = shape.split(", ")
    fits = embeddings.ndim == len(sizes) and ("2" not in sizes or embeddings.shape[1] == 2)
    if not fits or not embeddings.is_floating_point():
        got = f"{embeddings.dtype} {tuple(embeddings.shape)}"
        raise ValueError(f"Expected floating embeddings ({shape}), got {got}.")


def refuse(bad: Tensor, labels: Tensor, expected: str) -> None:
    if bad.any():
        rows = bad.nonzero().flatten().tolist()
        raise ValueError(
            f"Expected labels {expected}, got {labels[rows[0]].item()} in row {rows[0]} of the batch "
            f"({len(rows)} of {len(bad)} are like it). Correct or scale the labels."
        )


def check_groups(groups: Tensor, embeddings: Tensor) -> None:
    """Checks the number of each sentence."""
    if groups.shape != embeddings.shape[:2] or groups.is_floating_point():
        raise ValueError(f"Expected whole numbers as groups (batch, 2), got {groups.dtype} {tuple(groups.shape)}.")
