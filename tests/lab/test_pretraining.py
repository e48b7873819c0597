"""Pretraining: batches of single and of joined lines, losses by hand, packed rows against single sentences, heads."""

import itertools

import numpy as np
import pytest
import torch

from cosent.compute.packing import pack, plan_rows
from cosent.losses.distillation import synonym_loss
from lab.pretraining.batches import NeighbourBatches, mask_spans
from lab.pretraining.model import Pretraining, fresh_model

TEXT = ["我喜欢北京", "今天天气很好", "红色的苹果", "怎么还款", "如何还款", "推荐一辆红车", "好"]


def batches(tokenizer, lines=TEXT, batch_tokens=1):
    return NeighbourBatches(lambda: iter(lines), tokenizer, batch_tokens)


def test_a_pass_pairs_neighbours_and_reads_every_line_once(tokenizer):
    """Fails if a pair joins lines that do not follow one another, or a pass repeats or drops one.

    Seven lines: (0 1) (2 3) (4 5) on the first pass, (1 2) (3 4) (5 6) on the second.
    """
    pieces = [tuple(tokenizer.encode(line, add_special_tokens=False)) for line in TEXT]
    shuffled = batches(tokenizer).shuffled(np.random.default_rng(0))
    pairs = [tuple(pieces.index(tuple(piece)) for piece in pair) for pair in itertools.islice(shuffled, 6)]
    assert sorted(pairs[:3]) == [(0, 1), (2, 3), (4, 5)]
    assert sorted(pairs[3:]) == [(1, 2), (3, 4), (5, 6)]


def test_masking_hides_the_asked_share_in_spans(tokenizer):
    """Fails if the share is off, special tokens or padding are chosen, or 80/10/10 is not kept.

    With 400 x 38 eligible tokens the standard deviation of the share is below 0.006.
    """
    generator = np.random.default_rng(0)
    ids = generator.integers(200, 4000, (400, 50))
    lengths = np.full(400, 40)
    ids[:, 0], ids[:, [20, 39]] = tokenizer.cls_token_id, tokenizer.sep_token_id
    inputs, labels = mask_spans(ids, lengths, tokenizer, generator)
    chosen = labels != -100
    assert not chosen[:, [0, 20]].any() and not chosen[:, 39:].any()
    assert np.array_equal(inputs[~chosen], ids[~chosen]) and np.array_equal(labels[chosen], ids[chosen])
    assert chosen[:, 1:39].mean() == pytest.approx(0.3 * 37 / 38, abs=0.02)
    hidden = inputs[chosen] == tokenizer.mask_token_id
    kept = inputs[chosen] == ids[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.03) and kept.mean() == pytest.approx(0.1, abs=0.02)
    after_chosen = chosen[:, 2:39][chosen[:, 1:38]].mean()
    assert after_chosen > 0.45, "tokens are chosen one by one, not in spans"


@pytest.mark.parametrize("architecture", ["bert", "roformer"])
def test_packed_rows_give_the_loss_of_single_sentences(architecture, tokenizer):
    """Fails if a sentence sees its row neighbours, or positions do not start again: each alone is the truth."""
    model = fresh_model(architecture, len(tokenizer), layers=2, width=64).eval()
    lengths = np.array([7, 5, 6, 4])
    ids = torch.randint(200, 5000, (4, 7), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[:, 2] = ids[:, 2]
    tensors = {"input_ids": ids, "labels": labels}
    if architecture == "bert":
        tensors["position_ids"] = torch.arange(7).expand(4, -1)
    packed = pack(tensors, plan_rows(lengths, 12), fill={"labels": -100})
    losses = Pretraining(model, tokenizer)(**packed.tensors, segments=packed.segments)
    alone = [
        model(input_ids=ids[i : i + 1, :n], labels=labels[i : i + 1, :n], output_hidden_states=True)
        for i, n in enumerate(lengths)
    ]
    assert losses["mlm"].item() == pytest.approx(sum(output.loss.item() for output in alone) / 4, rel=1e-5)
    vectors = torch.cat([output.hidden_states[-1].mean(dim=1) for output in alone])
    assert losses["neighbour"].item() == pytest.approx(synonym_loss(vectors).item(), rel=1e-4)
