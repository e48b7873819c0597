"""Who sees whom: the one mask of training and decoding."""

import torch

from cosent.student.attention_mask import unilm_mask

LOW = torch.finfo(torch.float32).min


def test_the_mask_by_hand():
    """Fails if a source sees its target, a target its future, or a sequence its neighbour in the row."""
    segments = torch.tensor([[1, 1, 1, 1, 2, 2, 0]])
    types = torch.tensor([[0, 0, 1, 1, 0, 1, 0]])
    seen = [
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    expected = torch.where(torch.tensor(seen, dtype=torch.bool), 0.0, LOW)
    mask = unilm_mask(segments, types)
    assert mask.shape == (1, 1, 7, 7) and mask.dtype == torch.float32  # RoFormer adds it: a bool or int one leaks
    assert torch.equal(mask[0, 0], expected)


def test_left_padding_and_half_precision():
    """Fails if padding on the left, which decoding uses, is read, or the mask overflows to -inf in bfloat16."""
    mask = unilm_mask(torch.tensor([[0, 1, 1]]), torch.zeros(1, 3, dtype=torch.long), torch.bfloat16)
    assert mask.isfinite().all() and mask.dtype == torch.bfloat16
    assert (mask[0, 0] == 0).tolist() == [[True, False, False], [False, True, True], [False, True, True]]
