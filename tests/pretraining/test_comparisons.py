"""Joined lines: which ones, what they share, and which are masked."""

import numpy as np
import pytest
import torch

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.losses.cosent import cosent_loss
from cosent.modeling.loading import load_tokenizer
from cosent.pretraining.batches import IGNORED
from cosent.pretraining.comparisons import ComparedBatches, near_lines, overlap, rarity
from cosent.pretraining.model import COMPARE_SCALE, Pretraining, initial_model

LINES = ["我喜欢北京", "我很喜欢北京", "今天天气很好", "天气好", "怎么还款", "如何还款"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve("mini"))


def compared(tokenizer, lines=LINES):
    settings = {"max_length": 32, "batch_tokens": 300, "mask_ratio": 0.3, "buffer": 100}
    return iter(ComparedBatches(lambda: iter(lines), tokenizer, **settings))


def test_overlap_by_hand():
    """Fails if a token counts more often than both lines have it, or rare tokens count no more than frequent ones."""
    weights = np.array([0.0, 1.0, 2.0, 4.0])
    first, second = np.array([1, 1, 3]), np.array([1, 2, 2, 3])  # common: one 1 and one 3; weights 6 and 9
    assert overlap(first, second, weights) == pytest.approx(2 * 5 / 15)
    assert overlap(first, first, weights) == 1 and overlap(first, np.array([2]), weights) == 0
    assert overlap(np.array([0]), np.array([0]), weights) == 0  # what every line has says nothing
    assert rarity([first, second], 4).tolist() == pytest.approx([np.log(3), 0, np.log(1.5), 0])


def test_the_near_line_is_the_one_with_the_same_tokens():
    """Fails if strangers are easy: near ones must share more than random ones, and never be the line's own pair."""
    generator = np.random.default_rng(0)
    first = [generator.integers(1000, size=12) for _ in range(40)]
    second = [np.concatenate([first[(i + 1) % 40][:9], generator.integers(1000, size=3)]) for i in range(40)]
    weights = rarity(first + second, 1000)
    found = [near_lines(first, second, weights, np.random.default_rng(seed)) for seed in range(30)]
    assert all((near != np.arange(40)).all() for near in found)
    hits = np.mean([near == (np.arange(40) - 1) % 40 for near in found], axis=0)
    assert hits.mean() > 0.06, "1 of 8 is the twin; by chance 1 of 39"


def test_joined_batches_alternate_and_agree_with_their_lines(tokenizer):
    """Fails if overlaps belong to other inputs, masked inputs are compared, or `alone` has other lines."""
    stream = compared(tokenizer)
    lines, joined, *later = (next(stream) for _ in range(8))
    assert "overlaps" not in lines and "overlaps" in joined and "overlaps" in later[1]
    segments, alone = joined["segments"], joined["alone"]
    masked = joined["overlaps"].isnan()
    assert 0.2 < masked.float().mean() < 0.45 and len(alone["segments"].unique()) == 2 * len(masked) + 1
    seen = set()
    for number, shared in enumerate(joined["overlaps"].tolist(), 1):
        here = segments == number
        kept = joined["input_ids"][here]
        ends = (kept == tokenizer.sep_token_id).nonzero().flatten().tolist()
        assert len(ends) == 2 and ends[1] == len(kept) - 1
        assert joined["token_type_ids"][here].tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
        if np.isnan(shared):
            continue
        assert (joined["labels"][here] == IGNORED).all()
        pieces = [alone["input_ids"][alone["segments"] == 2 * number - side].tolist() for side in (1, 0)]
        assert pieces[0] + pieces[1][1:] == kept.tolist()
        assert (shared == pytest.approx(1)) == (sorted(pieces[0]) == sorted(pieces[1]))
        seen.add(round(shared, 3))
    assert len(seen) > 3 and (joined["labels"] != IGNORED).any()


def test_the_same_seed_makes_the_same_batches(tokenizer):
    """Fails if a resumed run reads other lines than the interrupted one would have."""
    for _, one, other in zip(range(4), compared(tokenizer), compared(tokenizer), strict=False):
        assert torch.equal(one["input_ids"], other["input_ids"])


def test_comparison_follows_overlaps_and_the_encoders_own_cosines(tokenizer):
    """Fails if a score learns another order than its own, or gradients reach the vectors that teach. Each pair alone
    is the truth."""
    generator, letters = np.random.default_rng(0), list("我很喜欢北京今天气好怎么还款如何")
    different = ["".join(generator.permutation(letters)[: 4 + number % 8]) for number in range(5000)]
    stream = compared(tokenizer, different)
    _, joined = next(stream), next(stream)
    model = Pretraining(initial_model("mini", two_sentences=True).eval(), tokenizer)
    losses = model(**joined)
    scores, cosines = [], []
    backbone = model.model.base_model
    for number, shared in enumerate(joined["overlaps"], 1):
        if shared.isnan():
            continue
        here, alone = joined["segments"] == number, joined["alone"]
        ids, types = (joined[name][here][None] for name in ("input_ids", "token_type_ids"))
        with torch.no_grad():
            pooled = backbone(input_ids=ids, token_type_ids=types).pooler_output
            scores.append(model.model.cls.seq_relationship(pooled)[0])
            pieces = [alone["input_ids"][alone["segments"] == 2 * number - side][None] for side in (1, 0)]
            means = [backbone(input_ids=piece).last_hidden_state.mean(1) for piece in pieces]
        cosines.append(torch.cosine_similarity(*means)[0])
    scores, cosines = torch.stack(scores), torch.stack(cosines)
    overlaps = joined["overlaps"][~joined["overlaps"].isnan()]
    expected = cosent_loss(scores[:, 0], overlaps, COMPARE_SCALE) + cosent_loss(scores[:, 1], cosines, COMPARE_SCALE)
    assert losses["compare"].item() == pytest.approx(expected.item(), rel=1e-2)
    losses["compare"].backward()
    assert model.model.cls.seq_relationship.weight.grad.abs().sum(1).min() > 0


def test_a_tokenizer_without_segments_is_refused(tokenizer):
    """Fails if both sentences would be read as one."""
    plain = load_tokenizer(resolve("mini"), model_input_names=["input_ids", "attention_mask"])
    with pytest.raises(InputError, match="segment ids"):
        next(compared(plain))
