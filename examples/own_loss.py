"""A loss of one's own: the correlation of the scores of a batch with its labels.

cosent train --config cosent_mini --loss examples/own_loss.py:correlation_loss --loss_args weight=0.5 --corpus demo \
    --output_dir runs/own_loss

The first parameter says what is read: `scores` (pairs,), `embeddings` (pairs, 2, width) or `logits` (pairs, classes).
`labels`, scaled to 0..1, and `groups`, equal for sentences that are known to be similar, come if they are named. Other
parameters have a number as their default, and are set by `--loss_args`. The batch is that of all processes.
"""

import torch
from torch import Tensor


def correlation_loss(scores: Tensor, labels: Tensor, weight: float = 1.0) -> Tensor:
    """`weight * (1 - Pearson's correlation of scores and labels)`; exactly 0 where all labels are equal."""
    x, y = (values.float() - values.float().mean() for values in (scores, labels))
    if not y.any():
        return x.sum() * 0
    return weight * (1 - torch.cosine_similarity(x, y, dim=0))
