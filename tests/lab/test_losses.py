"""The losses of `lab/losses.py` and `lab/masked.py`, as --loss loads them, against sums over all pairs on paper."""

import math
from functools import partial

import pytest
import torch
from transformers import AutoModelForMaskedLM, DataCollatorForLanguageModeling

from cosent.encoders import resolve
from cosent.losses import find_loss
from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import SentenceEncoder
from cosent.training.objective import Objective

S, T = [0.5, 0.1, 0.9, 0.4], [1.0, 0.0, 0.0, 0.5]  # scores and labels of four pairs
ORDERED = [(i, j) for i in range(4) for j in range(4) if T[i] > T[j]]


def value_of(name: str, scores: list[float] = S, **further) -> float:
    """The value of an option in float64, which has a gradient."""
    scores = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    value = find_loss(f"lab/losses.py:{name}").function(scores, torch.tensor(T, dtype=torch.float64), **further)
    (gradient,) = torch.autograd.grad(value, scores)
    assert gradient.isfinite().all() and gradient.norm() > 0
    return value.item()


def test_sentence_bert_with_a_cosine_term():
    """Fails if the term is that of other labels, or pulls at dissimilar pairs below the floor: only 0.9 exceeds it."""
    loss = find_loss("lab/losses.py:sbert_cosine")
    value = loss.function(torch.zeros(4, 2), torch.tensor(T), torch.tensor(S), weight=2.0, floor=0.5).item()
    assert loss.inputs == ["logits", "labels", "scores"]
    assert value == pytest.approx(math.log(2) + 2 * (0.5 + 0.0 + 0.4 + 0.5 * 0.6 + 0.5 * 0.0) / 4)


def test_triplets_of_a_batch():
    """Fails if another distance than the Euclidean is compared, a dissimilar pair gives an anchor, or a sentence of the
    same group a negative."""
    loss = find_loss("lab/losses.py:triplet")
    first = torch.tensor([[0.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    second = torch.tensor([[3.0, 4.0], [0.0, 3.5], [0.0, 0.0]])  # distances of the pairs: 5, 0.5 and 0
    embeddings = torch.stack([first, second], dim=1).double().requires_grad_()
    groups = torch.tensor([[1, 1], [2, 3], [1, 1]])
    value = loss.function(embeddings, torch.tensor([1.0, 0.0, 1.0]), groups, margin=1.0)
    # rows 0 and 2 against the second sentence of row 1 (0, 3.5), then against its first (0, 4)
    expected = [5 - 3.5 + 1, 0, 5 - 3 + 1, 0]
    assert value.item() == pytest.approx(sum(expected) / 4)
    (gradient,) = torch.autograd.grad(value, embeddings)
    assert gradient.isfinite().all() and gradient[0].norm() > 0
    assert loss.function(embeddings, torch.zeros(3), groups) == 0


def test_masked_words_beside_cosent():
    """Fails if the term is not transformers' loss of masked words, or its gradient does not reach the encoder."""
    encoder = SentenceEncoder.from_pretrained("mini", dropout=0.0).train()
    loss = find_loss("lab/masked.py:cosent_mlm")
    batch = encoder.tokenizer(
        ["今天天气很好，我喜欢北京", "怎么还款", "如何还款", "推荐一辆红车"], padding=True, return_tensors="pt"
    )
    ids, attention_mask, labels = batch["input_ids"], batch["attention_mask"], torch.tensor([1.0, 0.0])
    embeddings = encoder(ids, attention_mask).unflatten(0, (2, 2))
    encoder.eval()(ids[:1], attention_mask[:1])  # an evaluation is not trained on
    loss.function.__globals__["READING"].hook.remove()
    plain = cosent_loss(torch.cosine_similarity(*embeddings.unbind(1)), labels, 20.0)
    torch.manual_seed(3)
    term = loss.function(embeddings, labels, weight=0.5) - plain

    torch.manual_seed(3)
    special = torch.isin(ids, torch.tensor(encoder.tokenizer.all_special_ids))
    inputs, words = DataCollatorForLanguageModeling(encoder.tokenizer).torch_mask_tokens(ids.clone(), special)
    assert 0 < (words != -100).sum() < (~special).sum()
    model = AutoModelForMaskedLM.from_pretrained(resolve("mini")).eval()
    expected = model(input_ids=inputs, attention_mask=attention_mask, labels=words).loss
    assert term.item() == pytest.approx(0.5 * expected.item(), rel=1e-4)
    term.backward()
    assert encoder.backbone.get_input_embeddings().weight.grad[inputs[words != -100]].norm() > 0
    assert encoder.backbone.encoder.layer[0].output.dense.weight.grad.norm() > 0


def test_ranknet_weighs_every_comparison_the_same():
    """Fails if it is not the mean of log(1 + e^x) over ordered pairs."""
    terms = [math.log1p(math.exp(2 * (S[j] - S[i]))) for i, j in ORDERED]
    assert value_of("ranknet", scale=2.0) == pytest.approx(sum(terms) / len(terms))
    same = torch.ones(3)
    assert find_loss("lab/losses.py:ranknet").function(torch.rand(3), same) == 0 == cosent_loss(torch.rand(3), same)


def test_a_logistic_loss_learns_its_threshold():
    """Fails if the threshold stays where it starts, moves without a rate, is not recorded, or a second run begins where
    one ended."""
    labels = torch.tensor([1.0, 0.0])
    for rate, moved in ((0.0, 0.0), (0.5, -0.5)):  # Adam's first step is the rate, against the sign of the gradient
        loss = find_loss("lab/losses.py:logistic").function
        scores = torch.tensor([0.7, 0.6], requires_grad=True)
        first = loss(scores, labels, scale=2.0, threshold=0.5, threshold_rate=rate)
        first.backward()
        assert first.item() == pytest.approx((math.log1p(math.exp(-0.4)) + math.log1p(math.exp(0.2))) / 2)
        second = loss(scores, labels, scale=2.0, threshold=0.5, threshold_rate=rate).item()
        assert second == pytest.approx(
            (math.log1p(math.exp(-0.4 - moved)) + math.log1p(math.exp(0.2 + moved))) / 2, rel=1e-5
        )
        objective = Objective("own", partial(loss, threshold_rate=rate))
        assert objective.learnt == {"slope": 2.0, "offset": pytest.approx(-1.0 + moved)}


def test_a_threshold_is_fixed_at_the_mean_of_the_first_batch():
    """Fails if later batches move it, or another batch than the first places it: 0.65, of scores 0.7 and 0.6."""
    loss = find_loss("lab/losses.py:logistic").function
    for scores in ([0.7, 0.6], [0.1, 0.2]):
        given = torch.tensor(scores, requires_grad=True)
        value = loss(given, torch.tensor([1.0, 1.0]), scale=2.0, threshold=math.nan)
        expected = sum(math.log1p(math.exp(-2 * (score - 0.65))) for score in scores) / 2
        assert value.item() == pytest.approx(expected, rel=1e-5)
        value.backward()


def test_a_regression_learns_its_line():
    """Fails if slope and origin of the cosine stay 1 and 0: both go up by the rate where labels are above scores."""
    loss = find_loss("lab/losses.py:line_squared").function
    scores, labels = torch.tensor([0.5, 0.1], requires_grad=True), torch.tensor([1.0, 0.8])
    first = loss(scores, labels, rate=0.1)
    first.backward()
    assert first.item() == pytest.approx((0.5**2 + 0.7**2) / 2)
    assert loss(scores, labels, rate=0.1).item() == pytest.approx((0.35**2 + 0.59**2) / 2, rel=1e-5)
