"""The classifier head of Sentence-BERT's loss: dropped at inference, saved for resuming."""

import torch
from torch import Tensor, nn

from cosent.losses.checks import check_embeddings

FEATURES = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


class SentenceBertHead(nn.Module):
    """Sentence-BERT's classifier: a linear layer on a concatenation of features of two sentence embeddings.

    Drawn as in the source (Glorot uniform, bias 0), from `seed`; the global random state is left alone.

    Args:
        hidden_size: size of a sentence embedding.
        num_classes: logits per pair.
        features: any of `FEATURES`, in the order of concatenation.
        bias: true in Sentence-BERT and kexue.fm 8847; false in the joint model of 8541.
        seed: seed of the weights.

    Source: https://arxiv.org/abs/1908.10084, section 3; https://github.com/bojone/CoSENT, `sbert.py`.
    """

    def __init__(self, hidden_size: int, num_classes: int, features=("u", "v", "|u-v|"), bias=True, seed: int = 0):
        super().__init__()
        features = tuple(features)
        if not features or len(set(features)) < len(features) or not set(features) <= set(FEATURES):
            raise ValueError(
                f"features must be some of {', '.join(FEATURES)}, each once, got {', '.join(features) or 'none'}. "
                "A repeated feature would only be weighted twice. Name the ones that the head should read."
            )
        self.features = features
        self.linear = nn.utils.skip_init(nn.Linear, hidden_size * len(features), num_classes, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight, generator=torch.Generator().manual_seed(seed))
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Logits `(batch, num_classes)` of embeddings `(batch, 2, hidden)`, in the dtype of the weights."""
        check_embeddings(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):  # bf16 logits of a pair are often equal
            u, v = embeddings.to(self.linear.weight.dtype).unbind(1)
            return self.linear(torch.cat([FEATURES[name](u, v) for name in self.features], dim=-1))
