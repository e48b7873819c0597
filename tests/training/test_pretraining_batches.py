"""Pretraining: batches of single and of joined lines, against what they must hold."""

import itertools

import numpy as np
import pytest
import torch

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.loading import load_tokenizer
from cosent.training.pretraining_batches import (
    IGNORED,
    ComparedBatches,
    NeighbourBatches,
    learn_tokenizer,
    mask_spans,
    near_lines,
    overlap,
    rarity,
)

LINES = ["我喜欢北京", "今天天气很好", "红色的苹果", "怎么还款", "如何还款", "推荐一辆红车", "好"]
SIMILAR = ["我喜欢北京", "我很喜欢北京", "今天天气很好", "天气好", "怎么还款", "如何还款"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve("mini"))


def batches(tokenizer, lines=LINES, batch_tokens=1):
    return NeighbourBatches(lambda: iter(lines), tokenizer, batch_tokens)


def compared(tokenizer):
    return iter(ComparedBatches(lambda: iter(SIMILAR), tokenizer, batch_tokens=300))


def test_a_learnt_vocabulary_reads_its_text():
    """Fails if a frequent character or a Latin word is lost, or upper case makes another word."""
    tokenizer = learn_tokenizer(["微信 App 支付", "微信app支付", "app"] * 20, size=60)
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.tokenize("微信APP支付") == ["微", "信", "app", "支", "付"]
    assert tokenizer.tokenize("鳖") == ["[UNK]"]


def test_a_pass_pairs_neighbours_and_reads_every_line_once(tokenizer):
    """Fails if a pair joins lines that do not follow one another, or a pass repeats or drops one.

    Seven lines: (0 1) (2 3) (4 5) on the first pass, (1 2) (3 4) (5 6) on the second.
    """
    pieces = [tuple(tokenizer.encode(line, add_special_tokens=False)) for line in LINES]
    shuffled = batches(tokenizer).shuffled(np.random.default_rng(0))
    pairs = [tuple(pieces.index(tuple(piece)) for piece in pair) for pair in itertools.islice(shuffled, 6)]
    assert sorted(pairs[:3]) == [(0, 1), (2, 3), (4, 5)]
    assert sorted(pairs[3:]) == [(1, 2), (3, 4), (5, 6)]


def test_long_lines_are_cut_into_neighbours(tokenizer):
    """Fails if the end of a long line is lost."""
    first, second = "一二三四五六七八九" * 14, "六七八"
    pieces = batches(tokenizer, [first + second]).pieces()
    assert [tokenizer.decode(piece).replace(" ", "") for piece in pieces] == [first, second]


def test_a_batch_is_packed_rows_of_its_pairs(tokenizer):
    """Fails if a piece is not laid out whole with its own positions, or a label stands elsewhere than its token."""
    held = batches(tokenizer, batch_tokens=30)
    batch = next(iter(held))
    assert set(batch) == {"input_ids", "labels", "position_ids", "token_type_ids", "segments"}
    assert not batch["token_type_ids"].any()
    assert len({tensor.shape for tensor in batch.values()}) == 1 and batch["input_ids"].shape[1] == 128
    originals = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    segments = int(batch["segments"].max())
    assert segments % 2 == 0 and int((batch["segments"] > 0).sum()) >= 30
    for segment in range(1, segments + 1):
        chosen = batch["segments"] == segment
        text = tokenizer.decode(originals[chosen]).replace(" ", "")
        assert text.removeprefix("[CLS]").removesuffix("[SEP]") in LINES and text.startswith("[CLS]")
        assert batch["position_ids"][chosen].tolist() == list(range(int(chosen.sum())))
    assert torch.equal(next(iter(held))["input_ids"], batch["input_ids"]), "the same seed gave another batch"


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


def test_overlap_by_hand():
    """Fails if a token counts more often than both lines have it, or rare tokens count no more than frequent ones."""
    weights = np.array([0.0, 1.0, 2.0, 4.0])
    first, second = np.array([1, 1, 3]), np.array([1, 2, 2, 3])  # common: one 1 and one 3; weights 6 and 9
    assert overlap(first, second, weights) == pytest.approx(2 * 5 / 15)
    assert overlap(first, first, weights) == 1 and overlap(first, np.array([2]), weights) == 0
    assert overlap(np.array([0]), np.array([0]), weights) == 0  # what every line has says nothing
    assert rarity([first, second], 4).tolist() == pytest.approx([np.log(3), 0, np.log(1.5), 0])


def test_the_near_line_is_the_one_with_the_same_tokens():
    """Fails if negatives are easy: near ones must share more than random ones, and never be the line's own pair."""
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


def test_what_cannot_be_read_is_refused(tokenizer):
    """Fails if a single line makes the job wait for ever."""
    with pytest.raises(InputError, match="two lines"):
        next(iter(batches(tokenizer, ["好"])))
