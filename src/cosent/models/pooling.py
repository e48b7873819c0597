"""Poolings of a sentence encoder, from token vectors to a sentence vector; all of them ignore padding."""

import torch
from torch import nn

from cosent.errors import InputError

POOLINGS, LINEAR_CLS = ("cls", "mean", "lasttoken"), "linear_cls"
CHOICES = (*POOLINGS, LINEAR_CLS)  # of --pooling: the last is `cls` and a Dense layer without activation


class Pooling(nn.Module):
    """Turns token vectors into one sentence vector.

    Args:
        mode: `cls` or `lasttoken`, the first or the last token; or `mean` over all tokens, special ones included, as
            sentence-transformers does.
        hidden_size: width of the token vectors.
    """

    def __init__(self, mode: str, hidden_size: int):
        super().__init__()
        if mode not in POOLINGS:
            raise InputError(f"--pooling must be one of {', '.join(CHOICES)}, got {mode!r}.")
        self.mode, self.hidden_size = mode, hidden_size

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pools one sentence per row.

        Args:
            tokens (`torch.Tensor` of shape `(sentences, tokens, hidden)`): the backbone's output.
            mask (`torch.Tensor` of shape `(sentences, tokens)`): 1 for tokens, 0 for padding on the left or right.

        Returns:
            `torch.Tensor` of shape `(sentences, hidden)`.
        """
        if self.mode == "mean":
            weights = mask / mask.sum(dim=1, keepdim=True)  # (sentences, tokens)
            return (tokens * weights[..., None].to(tokens.dtype)).sum(dim=1)
        index = mask.int().argmax(dim=1)  # the first of equal ones
        if self.mode == "lasttoken":
            index = mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)
        return tokens[torch.arange(tokens.shape[0], device=tokens.device), index]
