"""One vector out of many: the pools of a sentence encoder. Padding never enters any of them."""

import torch
from torch import nn

from cosent.errors import InputError

POOLINGS = ("cls", "mean", "first_last_mean", "max", "attention", "linear_cls")


class Pooling(nn.Module):
    """Turns token vectors into one sentence vector.

    `cls`: the first token. `mean`, `max`: over all tokens, [CLS] and [SEP] included, as sentence-transformers does.
    `first_last_mean`: mean over tokens of the average of the first and the last layer's output (BERT-whitening,
    arXiv 2103.15316). `attention`: softmax-weighted mean with one learned score per token. `linear_cls`: a linear
    layer without activation on [CLS] (RoFormer-Sim, kexue.fm 8454).

    Args:
        mode: one of `POOLINGS`.
        hidden_size: width of the token vectors.
        seed: seed of the fresh weights of `attention` and `linear_cls`; the global random state stays as it was.
    """

    def __init__(self, mode: str, hidden_size: int, seed: int = 42):
        super().__init__()
        if mode not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {mode!r}.")
        self.mode = mode
        self.hidden_size = hidden_size
        outputs = {"attention": 1, "linear_cls": hidden_size}.get(mode)
        if outputs is not None:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                self.linear = nn.Linear(hidden_size, outputs)

    @property
    def layers(self) -> tuple[int, ...]:
        """Which of a backbone's `hidden_states` the pool reads; 0 would be the embeddings, -1 is the output."""
        return (1, -1) if self.mode == "first_last_mean" else (-1,)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pools one sentence per row.

        Args:
            tokens (`torch.Tensor` of shape `(sentences, tokens, hidden)`): mean of the layers named by `layers`.
            mask (`torch.Tensor` of shape `(sentences, tokens)`): 1 for tokens, 0 for padding on the right.

        Returns:
            `torch.Tensor` of shape `(sentences, hidden)`.
        """
        if self.mode == "cls":
            return tokens[:, 0]
        if self.mode == "linear_cls":
            return self.linear(tokens[:, 0])
        mask = mask[..., None].bool()  # (sentences, tokens, 1)
        if self.mode == "max":
            return tokens.masked_fill(~mask, -torch.inf).amax(dim=1)
        if self.mode == "attention":
            weights = self.linear(tokens).masked_fill(~mask, -torch.inf).softmax(dim=1)
        else:
            weights = mask / mask.sum(dim=1, keepdim=True)
        return (tokens * weights.to(tokens.dtype)).sum(dim=1)
