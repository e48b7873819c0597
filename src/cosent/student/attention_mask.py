"""UniLM's attention mask: bidirectional within the source, causal within the target."""

import torch


def unilm_mask(segments: torch.Tensor, token_type_ids: torch.Tensor, dtype: torch.dtype = torch.float32):
    """Additive attention mask of `[CLS] source [SEP] target [SEP]`, one or several such sequences in a row.

    A source token sees the source of its sequence, a target token also the targets up to itself. Empty places see each
    other, so that no softmax is empty. RoFormer adds the mask as it is: a boolean or 0-1 mask would reveal the future.

    Args:
        segments: shape `(rows, width)`, the number of the sequence from 1, 0 where a row has no token; an attention
            mask will do for one sequence in a row, padded on either side.
        token_type_ids: same shape, 0 for source (and empty places), 1 for target.
        dtype: that of the attention scores.

    Returns:
        `torch.Tensor` of shape `(rows, 1, width, width)`: 0 where a query (row) sees a key (column), else `finfo.min`.

    Source: https://arxiv.org/abs/1905.03197, section 2.3.
    """
    same = segments[:, :, None] == segments[:, None, :]
    place = torch.arange(segments.shape[1], device=segments.device)
    past = place[None, :] <= place[:, None]  # (width, width)
    sees_source = (token_type_ids == 0)[:, None, :]
    sees_past = (token_type_ids == 1)[:, :, None] & past
    seen = (same & (sees_source | sees_past))[:, None]
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
