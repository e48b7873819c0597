"""Choosing the next token: nucleus and top-k sampling from logits, with the random numbers given from outside."""

import torch

CANDIDATES = 128  # most likely tokens that are looked at first; sorting a whole vocabulary costs more than the model


def sample_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    top_p: float = 0.95,
    top_k: int | None = None,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Draws a token per row from the most likely ones, by the inverse of their cumulative distribution.

    Kept are the `top_k` most likely tokens, and of those the fewest that together reach `top_p`, at least one.

    Args:
        logits: shape `(rows, vocabulary)`; -inf for tokens that must not be drawn.
        uniform: shape `(rows,)`, random numbers in [0, 1), on which alone the draw depends.
        top_p: probability that the kept tokens reach; 1 keeps all.
        top_k: most tokens to keep; None for no limit.
        temperature: logits are divided by it.

    Returns:
        int64 of shape `(rows,)`.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (rows, vocabulary)
    vocabulary = probabilities.shape[-1]
    most = vocabulary if top_k is None else min(top_k, vocabulary)
    values, tokens = probabilities.topk(min(most, CANDIDATES), dim=-1)  # (rows, candidates), falling
    chosen = _draw(values, tokens, uniform, top_p)
    short = values.sum(dim=-1) < top_p  # the kept tokens may go on beyond the candidates
    if most > CANDIDATES and short.any():
        values, tokens = probabilities[short].topk(most, dim=-1)
        chosen[short] = _draw(values, tokens, uniform[short], top_p)
    return chosen


def _draw(values: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor, top_p: float) -> torch.Tensor:
    cumulative = values.cumsum(dim=-1)
    kept = (cumulative - values < top_p).sum(
        dim=-1, keepdim=True
    )  # (rows, 1), at least 1: the first has nothing before
    reached = cumulative.gather(1, kept - 1)
    place = torch.searchsorted(cumulative, uniform[:, None] * reached, right=True)
    return tokens.gather(1, torch.minimum(place, kept - 1)).squeeze(1)
