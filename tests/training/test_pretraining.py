"""Pretraining: its losses by hand, packed rows against single sentences, and the matching head."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from cosent.compute.packing import pack, plan_rows
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.losses.cosent import cosent_loss
from cosent.losses.distillation import synonym_loss
from cosent.models.loading import load_tokenizer
from cosent.training.pretraining import (
    COMPARE_SCALE,
    Pretraining,
    add_matching_head,
    fresh_model,
    initial_model,
)
from cosent.training.pretraining_batches import ComparedBatches
from tests.families import save_family

LINES = ["怎么还款才好", "如何还款", "我想买一辆红色的车", "今天天气很好", "你喜欢北京吗", "北京的天气怎么样"] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve("mini"))


@pytest.fixture(scope="module")
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


def test_a_bert_becomes_a_roformer(tmp_path, tokenizer):
    """Fails if a weight that both have does not arrive."""
    bert = fresh_model("bert", len(tokenizer), layers=1, width=64)
    Pretraining(bert, tokenizer).save_pretrained(tmp_path)
    roformer = initial_model(str(tmp_path), "roformer").state_dict()
    shared = {name.replace("bert.", "roformer.", 1): value for name, value in bert.state_dict().items()}
    shared = {name: value for name, value in shared.items() if "position" not in name}
    assert len(shared) > 20 and all(torch.equal(roformer[name], value) for name, value in shared.items())


def test_models_whose_head_is_another_are_refused(tmp_path):
    """Fails if --init accepts a model that training then stops at with a traceback."""
    with pytest.raises(InputError, match="is a electra model, and this pretraining continues only bert"):
        initial_model(str(save_family("electra", tmp_path / "electra")))


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


def shares(model, tokenizer) -> tuple[float, float]:
    """Attention of head 0 in layer 0: of 还款 to itself in the other sentence, and of 才好 to its own place."""
    model.set_attn_implementation("eager")
    pair = tokenizer("怎么还款才好", "如何还款", return_tensors="pt")  # 还款 at 3, 4 and again at 10, 11
    with torch.no_grad():
        attention = model.base_model(**pair, output_attentions=True).attentions[0][0, 0]
    across = [attention[here, there].item() for here, there in ((3, 10), (4, 11), (10, 3), (11, 4))]
    return min(across), min(attention[5, 5].item(), attention[6, 6].item())


@pytest.mark.parametrize("start", ["mini", "random"])
def test_a_token_finds_itself_in_the_other_sentence(tokenizer, ids, start):
    """Fails if a token attends to its own place although the other sentence has it, or to any place if it has not."""
    model = without_first_head() if start == "mini" else fresh_model("bert", len(tokenizer), layers=1, width=128)
    before, _ = shares(model.eval(), tokenizer)
    add_matching_head(model, ids)
    across, at_home = shares(model, tokenizer)
    assert before < 0.3 and across > 0.8 and at_home > 0.3


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
