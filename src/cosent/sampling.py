"""Choosing the next token: nucleus and top-k sampling from logits, with the random numbers given from outside."""

import torch

# Most likely tokens that are looked at first: finding the top 6,000 of 6,000 costs 7 times what the top 128 do, and as
# much as the model itself.
CANDIDATES = (128, 1024)


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
    chosen = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    rows = torch.arange(len(logits), device=logits.device)  # those whose nucleus may go on beyond the candidates
    for count in (*(count for count in CANDIDATES if count < most), most):
        values, tokens = probabilities[rows].topk(count, dim=-1)  # (rows, count), falling
        chosen[rows] = _draw(values, tokens, uniform[rows], top_p)
        rows = rows[values.sum(dim=-1) < top_p]
        if not len(rows):
            break
    return chosen


def _draw(values: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor, top_p: float) -> torch.Tensor:
    cumulative = values.cumsum(dim=-1)
    kept = (cumulative - values < top_p).sum(
        dim=-1, keepdim=True
    )  # (rows, 1), at least 1: the first has nothing before
    reached = cumulative.gather(1, kept - 1)
    place = torch.searchsorted(cumulative, uniform[:, None] * reached, right=True)
    return tokens.gather(1, torch.minimum(place, kept - 1)).squeeze(1)
