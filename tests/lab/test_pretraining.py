"""Pretraining: batches of single and of joined lines, losses by hand, packed rows against single sentences, heads."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from cosent.compute.packing import pack, plan_rows
from cosent.losses.cosent import cosent_loss
from cosent.losses.distillation import synonym_loss
from lab.pretraining.batches import (
    ComparedBatches,
    NeighbourBatches,
    learn_tokenizer,
    mask_spans,
)
from lab.pretraining.model import (
    COMPARE_SCALE,
    Pretraining,
    add_matching_head,
    fresh_model,
    initial_model,
)

LINES = ["怎么还款才好", "如何还款", "我想买一辆红色的车", "今天天气很好", "你喜欢北京吗", "北京的天气怎么样"] * 20
TEXT = ["我喜欢北京", "今天天气很好", "红色的苹果", "怎么还款", "如何还款", "推荐一辆红车", "好"]
SIMILAR = ["我喜欢北京", "我很喜欢北京", "今天天气很好", "天气好", "怎么还款", "如何还款"] * 20


def batches(tokenizer, lines=TEXT, batch_tokens=1):
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


@pytest.fixture
def ids(tokenizer):
    return np.concatenate(tokenizer(LINES, add_special_tokens=False)["input_ids"])


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


def test_comparison_follows_overlaps_and_the_encoders_own_cosines(tokenizer):
    """Fails if a score learns another order than its own, or gradients reach the vectors that teach. Each pair alone
    is the truth."""
    generator, letters = np.random.default_rng(0), list("我很喜欢北京今天气好怎么还款如何")
    different = ["".join(generator.permutation(letters)[: 4 + number % 8]) for number in range(5000)]
    stream = iter(ComparedBatches(lambda: iter(different), tokenizer, batch_tokens=300))
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


def without_first_head(name: str = "mini"):
    """A model whose head 0 in layer 0 attends to all alike and adds nothing; the shipped one matches already."""
    model = initial_model(name).eval()
    attention = model.base_model.encoder.layer[0].attention
    rows = slice(0, attention.self.attention_head_size)
    with torch.no_grad():
        for weights in (attention.self.query.weight[rows], attention.self.query.bias[rows]):
            weights.zero_()
        attention.output.dense.weight[:, rows] = 0
    return model


def test_lines_on_their_own_are_read_as_before(tokenizer, ids):
    """Fails if an encoder that has learnt to read single lines forgets it: sentence vectors must stay in place."""
    lines = tokenizer(LINES[:6], return_tensors="pt", padding=True)
    model = without_first_head()
    vectors = []
    for _ in range(2):
        with torch.no_grad():
            hidden = model.base_model(**lines).last_hidden_state
        vectors.append((hidden * lines["attention_mask"][..., None]).sum(1))
        add_matching_head(model, ids)
    assert cosine_similarity(*vectors).min() > 0.97 and not torch.equal(*vectors)
