"""What the tokens of a packed row see, against masks drawn by hand."""

import threading

import pytest
import torch
from transformers import BertConfig, ModernBertConfig, Qwen3Config
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    create_causal_mask,
)

from cosent.compute.packing import sentences_apart

SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 0]])  # two sentences and an empty place
EVERYTHING = """
    ###...
    ###...
    ###...
    ...##.
    ...##.
    .....#
"""
BEFORE = """
    #.....
    ##....
    ###...
    ...#..
    ...##.
    .....#
"""
NEIGHBOURS = """
    ##....
    ###...
    .##...
    ...##.
    ...##.
    .....#
"""
KINDS = {
    "bidirectional": (create_bidirectional_mask, BertConfig(), EVERYTHING),
    "causal": (create_causal_mask, Qwen3Config(), BEFORE),
    "local": (create_bidirectional_sliding_window_mask, ModernBertConfig(local_attention=2), NEIGHBOURS),
}


def draw(create, config, attention="sdpa", **options) -> torch.Tensor | None:
    config._attn_implementation = attention
    arguments = {"attention_mask": None, "past_key_values": None, **options}
    return create(config=config, inputs_embeds=torch.zeros(1, 6, 4), **arguments)


def drawn_by_hand(picture: str) -> torch.Tensor:
    return torch.tensor([[[[place == "#" for place in line] for line in picture.split()]]])


@pytest.mark.parametrize(("create", "config", "picture"), KINDS.values(), ids=KINDS)
def test_each_sees_its_own_sentence_in_the_way_of_its_architecture(create, config, picture):
    """Fails if sentences of a row see each other, or a causal or local layer sees more of its own than it should."""
    expected = drawn_by_hand(picture)
    with sentences_apart(SEGMENTS):
        assert torch.equal(draw(create, config), expected)
        added = draw(create, config, "eager")
        overlaid = draw(create, config, or_mask_function=lambda batch, head, query, key: query == key)
    assert torch.equal(added, torch.where(expected, 0.0, torch.finfo(torch.float32).min))
    assert torch.equal(overlaid, expected)  # an architecture that adds to its masks: drawn in another way


@pytest.mark.parametrize(("create", "config", "picture"), KINDS.values(), ids=KINDS)
def test_a_full_row_of_one_sentence_is_like_any_other(create, config, picture):
    """Fails if transformers leaves out the mask of such rows: those of other architectures would get none either."""
    with sentences_apart(torch.ones(1, 6, dtype=torch.long)):
        assert draw(create, config) is not None


def test_other_models_of_the_process_are_left_alone():
    """Fails if a model that is called outside, or by another thread, sees the sentences of a batch that is not its."""
    with sentences_apart(SEGMENTS):
        seen = []
        thread = threading.Thread(target=lambda: seen.append(draw(create_bidirectional_mask, BertConfig())))
        thread.start()
        thread.join()
    assert seen == [None] and draw(create_bidirectional_mask, BertConfig()) is None
    assert draw(create_causal_mask, Qwen3Config()) is None
