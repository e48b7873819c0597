"""Nucleus and top-k sampling of the next token, with random numbers supplied by the caller."""

import torch

# Number of most likely tokens to try first, as most draws are among them: sorting all 6,000 costs 14 times as much as
# finding the top 64.
CANDIDATES = (64, 1024)
ROUNDING = 1e-6  # relative, of a cumulative probability


def sample_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    top_p: float = 0.95,
    top_k: int | None = None,
    temperature: float = 1.0,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draws from the most likely tokens of a row by inverse transform sampling.

    Keeps the `top_k` most likely tokens, and of those the fewest that together reach `top_p`, at least one.

    Args:
        logits: shape `(rows, vocabulary)`; -inf for tokens that must not be drawn.
        uniform: shape `(draws,)`, random numbers in [0, 1), the only randomness of each draw.
        top_p: probability that the kept tokens reach; 1 keeps all.
        top_k: most tokens to keep; None for no limit.
        temperature: logits are divided by it.
        rows: shape `(draws,)`, the row that each draw is from, every row at least once; default: one draw per row.

    Returns:
        int64 of shape `(draws,)`.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (rows, vocabulary)
    vocabulary = probabilities.shape[-1]
    most = vocabulary if top_k is None else min(top_k, vocabulary)
    rows = torch.arange(len(logits), device=logits.device) if rows is None else rows
    drawn = torch.empty_like(rows)
    draws = torch.arange(len(rows), device=rows.device)  # draws without a token so far
    for count in (*(count for count in CANDIDATES if count < most), most):
        values, tokens = probabilities.topk(count, dim=-1)  # (rows, count), falling
        cumulative = values.cumsum(dim=-1)
        last = (cumulative - values < top_p).sum(dim=-1) - 1  # (rows,), at least 0: the first has nothing before it
        low = high = cumulative.gather(1, last[:, None]).squeeze(1)  # (rows,), total probability of the kept tokens
        whole = (cumulative[:, -1] >= top_p) | (count == most)
        # If the nucleus continues beyond these tokens, its total lies between `low` and `high`, which differ by at most
        # one token's probability. A draw u is decided if u * low and u * high hit the same token; others need more.
        low = low.where(whole, (top_p if most == vocabulary else low) * (1 - ROUNDING))
        high = high.where(whole, (top_p + values[:, -1]) * (1 + ROUNDING))
        candidates = cumulative[rows]  # (draws, count)
        place, other = (
            torch.searchsorted(candidates, (uniform[draws] * bound[rows])[:, None], right=True).squeeze(1)
            for bound in (low, high)
        )
        drawn[draws] = tokens[rows, torch.minimum(place, last[rows])]
        more = ~whole[rows] & ((place != other) | (other == count))
        if not more.any():
            break
        needed, rows = rows[more].unique(return_inverse=True)
        draws, probabilities = draws[more], probabilities[needed]
    return drawn
