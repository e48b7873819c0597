"""Losses against values derived on paper, a float64 sum over all pairs of pairs, and sentence-transformers."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import losses as st_losses
from sentence_transformers.util import pairwise_angle_sim
from torch.autograd import gradcheck

from cosent.losses import LOSSES
from cosent.losses.classification import (
    binary_cross_entropy_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)
from cosent.losses.cosent import angle_loss, cosent_loss, has_ordered_pair
from cosent.losses.cosine import (
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
)
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.modeling.sbert_head import FEATURES, SentenceBertHead

NAIVE = [cosine_linear_loss, cosine_squared_loss, cosine_floor_loss, cosine_mse_loss, cosine_hinge_loss]
ON_LOGITS = [binary_cross_entropy_loss, mse_loss]


def all_pairs_cosent(scores: torch.Tensor, labels: torch.Tensor, scale: float) -> torch.Tensor:
    """The definition: one term for each i, j with labels[i] > labels[j], in a (batch, batch) matrix of float64."""
    scores = scores.double() * scale
    terms = scores[None, :] - scores[:, None]  # [i, j] = scores[j] - scores[i]
    terms = terms.masked_fill(~(labels[:, None] > labels[None, :]), -torch.inf)
    return torch.cat((scores.new_zeros(1), terms.flatten())).logsumexp(0)


def loss_and_gradient(loss, values: torch.Tensor, *rest) -> tuple[torch.Tensor, torch.Tensor]:
    values = values.clone().requires_grad_()
    result = loss(values, *rest)
    result.backward()
    return result.detach(), values.grad


def random_labels(kind: str, batch: int, generator: torch.Generator) -> torch.Tensor:
    if kind == "distinct":
        return torch.randperm(batch, generator=generator).float()
    grades = {"binary": 2, "nli": 3, "graded": 26}[kind]
    return torch.randint(grades, (batch,), generator=generator) / (5 if kind == "graded" else 1)


@pytest.mark.parametrize("spread, scale", [(1.0, 20.0), (50.0, 1.0)], ids=["cosines", "logits"])
@pytest.mark.parametrize("batch", [1, 2, 64, 4096])
@pytest.mark.parametrize("kind", ["binary", "nli", "graded", "distinct"])
def test_cosent_equals_the_sum_over_all_pairs(kind, batch, spread, scale):
    """Fails if training minimises something else than CoSENT. Measured noise: loss 3e-7, gradient 4e-8."""
    generator = torch.Generator().manual_seed(batch)
    scores = (torch.rand(batch, generator=generator) * 2 - 1) * spread
    labels = torch.tensor([1.0, 0.0]) if batch == 2 else random_labels(kind, batch, generator)
    expected, expected_gradient = loss_and_gradient(all_pairs_cosent, scores.double(), labels, scale)
    loss, gradient = loss_and_gradient(cosent_loss, scores, labels, scale)

    assert loss.dtype == gradient.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-30)
    assert (gradient - expected_gradient).norm() <= 5e-7 * expected_gradient.norm()
    assert batch == 1 or expected_gradient.norm() > 0  # something was compared


def test_cosent_on_paper():
    """Scores 0.3, 0.5, 0.1 with labels 1, 0, 0 and scale 10: two ordered pairs, terms exp(10 (0.5 - 0.3)) = e^2 and
    exp(10 (0.1 - 0.3)) = e^-2, so the loss is log(1 + e^2 + e^-2) = log(Z). Its gradient is 10 / Z times (-e^2 - e^-2,
    e^2, e^-2). If this fails, sign, scale or the 1 are wrong."""
    e2, z = math.exp(2), 1 + math.exp(2) + math.exp(-2)
    loss, gradient = loss_and_gradient(
        partial(cosent_loss, scale=10.0), torch.tensor([0.3, 0.5, 0.1]).double(), torch.tensor([1, 0, 0])
    )
    assert loss.item() == pytest.approx(math.log(z), rel=1e-7)
    assert gradient.tolist() == pytest.approx([-10 * (e2 + 1 / e2) / z, 10 * e2 / z, 10 / e2 / z], rel=1e-6)


@pytest.mark.parametrize("labels", [[2.0], [1.0, 1.0, 1.0], []], ids=["one pair", "equal labels", "empty"])
def test_cosent_without_an_ordered_pair_is_exactly_zero(labels):
    """Fails if a batch that teaches nothing moves the weights, or crashes backward."""
    labels = torch.tensor(labels)
    loss, gradient = loss_and_gradient(cosent_loss, torch.linspace(-0.5, 0.5, len(labels)), labels)
    assert loss.item() == 0
    assert torch.equal(gradient, torch.zeros(len(labels)))
    assert not has_ordered_pair(labels)


def test_has_ordered_pair_sees_any_difference():
    """Fails if the count of dead batches that the trainer reports is wrong."""
    assert has_ordered_pair(torch.tensor([1, 1, 0])) and has_ordered_pair(torch.tensor([False, True]))


def test_cosent_depends_on_the_order_of_labels_only():
    """Fails if rescaling labels or shuffling a batch changes training; integer and bool labels count as well."""
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(64, generator=generator), torch.randint(6, (64,), generator=generator)
    loss, gradient = loss_and_gradient(cosent_loss, scores, labels)
    for same_order in (labels.float().exp(), labels / 5 - 3, labels.to(torch.int8), labels.bfloat16(), labels.half()):
        assert torch.equal(loss_and_gradient(cosent_loss, scores, same_order)[1], gradient)
    order = torch.randperm(64, generator=generator)
    shuffled, shuffled_gradient = loss_and_gradient(cosent_loss, scores[order], labels[order])
    torch.testing.assert_close(shuffled, loss)
    torch.testing.assert_close(shuffled_gradient, gradient[order])
    assert cosent_loss(scores, labels > 2) == cosent_loss(scores, (labels > 2).long())
    assert cosent_loss(scores, -labels) != loss


def test_cosent_survives_extreme_scores():
    """Scores of +-1e6 (the source clips there): the only wrong pair costs 2e6, its gradient is -1 and 1.
    If this fails, a cross-encoder that is sure of itself ends in NaN."""
    loss, gradient = loss_and_gradient(
        partial(cosent_loss, scale=1.0), torch.tensor([-1e6, 1e6, -1e6]), torch.tensor([1.0, 0.0, 0.0])
    )
    assert loss.item() == 2e6
    assert gradient.tolist() == [-1, 1, 0]


@pytest.mark.parametrize("labels", [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], ids=["ordered", "equal"])
def test_nan_scores_make_the_loss_nan(labels):
    """Fails if a model that has diverged trains on as if nothing had happened."""
    scores, labels = torch.tensor([0.1, math.nan, 0.2]), torch.tensor(labels)
    assert cosent_loss(scores, labels).isnan()
    assert all(loss(scores, labels).isnan() for loss in NAIVE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    """Fails if mixed-precision training loses the loss's digits, or fp16 overflows."""
    scores, labels = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype), torch.arange(64) % 2
    for loss in (cosent_loss, *NAIVE):
        result, gradient = loss_and_gradient(loss, scores, labels)
        expected, expected_gradient = loss_and_gradient(loss, scores.float(), labels)
        assert result == expected and result.dtype == torch.float32
        assert torch.equal(gradient, expected_gradient.to(dtype)) and gradient.norm() > 0
    embeddings = (torch.randn(8, 2, 6, generator=torch.Generator().manual_seed(0)) * 300).to(dtype)  # squares overflow
    assert angle_loss(embeddings, torch.arange(8)) == angle_loss(embeddings.float(), torch.arange(8))
    logits = torch.randn(4, 3).to(dtype)
    assert cross_entropy_loss(logits, torch.tensor([0, 1, 2, 0])).dtype == torch.float32


def test_cosent_and_angle_equal_sentence_transformers():
    """Fails if results cannot be compared with those of the most used library."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, (48,), generator=generator) / 4
    embeddings = torch.randn(48, 2, 32, generator=generator)

    def theirs(loss_class):
        return lambda e, y: loss_class(model=None).compute_loss_from_embeddings(list(e.unbind(1)), y)

    def cosines(e, y):
        return cosent_loss(F.cosine_similarity(e[:, 0], e[:, 1]), y)

    for ours, loss_class in (
        (cosines, st_losses.CoSENTLoss),
        (partial(angle_loss, cosine_weight=0.0), st_losses.AnglELoss),
    ):
        loss, gradient = loss_and_gradient(ours, embeddings, labels)
        expected, expected_gradient = loss_and_gradient(theirs(loss_class), embeddings, labels)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-6)
        assert gradient.norm() > 0.1


def test_angle_on_paper():
    """Hidden size 2 is one complex number. u = 1 (1, 0), v = i (0, 1): cos 0, sin = 0 * 0 - 1 * 1 = -1, angle score 1.
    u = v: cos 1, sin 0, angle score 1. With label 1 for the second pair the angle term is log(1 + e^0) = log 2, the
    cosine term log(1 + exp(2 (0 - 1))). If this fails, real and imaginary halves are mixed up."""
    embeddings = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[2.0, 2.0], [1.0, 1.0]]], dtype=torch.float64)
    labels = torch.tensor([0.0, 1.0])
    both = angle_loss(embeddings, labels, scale=2.0, cosine_weight=0.5)
    assert both.item() == pytest.approx(math.log(2) + 0.5 * math.log1p(math.exp(-2)))
    torch.testing.assert_close(pairwise_angle_sim(embeddings[:, 0], embeddings[:, 1]), torch.ones(2).double())


def test_angle_of_a_zero_vector_has_a_finite_gradient():
    """Fails if one dead sentence vector turns all weights into NaN or throws them far away."""
    embeddings = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(0))
    embeddings[0, 0] = 0
    _, gradient = loss_and_gradient(angle_loss, embeddings, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert gradient.isfinite().all() and gradient.abs().max() < 100 and gradient[1:].norm() > 0


def test_gradients_are_those_of_the_formulas():
    """Fails if backward disagrees with forward (finite differences in float64)."""
    generator = torch.Generator().manual_seed(0)
    scores = (torch.rand(12, generator=generator, dtype=torch.float64) * 1.6 - 0.8).requires_grad_()
    labels = torch.randint(4, (12,), generator=generator) / 3
    for loss in (cosent_loss, *NAIVE, *ON_LOGITS):
        assert gradcheck(partial(loss, labels=labels), scores), loss
    embeddings = torch.randn(5, 2, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(partial(angle_loss, labels=labels[:5]), embeddings)


@pytest.mark.parametrize(
    "loss, expected, expected_gradient",
    [
        (cosine_linear_loss, (0.2 + 1.5 + 0.5 * 1 + 0.5 * 1) / 3, (-1, 1, 0)),
        (cosine_squared_loss, (0.04 + 0.25 + 0.5 * 1 + 0) / 3, (-0.4, 1.0, -1.0)),
        (cosine_floor_loss, (0.2 + 0.7 + 0.5 * 1 + 0.5 * 0.7) / 3, (-1, 0, -0.5)),
        (cosine_mse_loss, (0.04 + 2.25 + 0) / 3, (-0.4, 3.0, 0)),
        (cosine_hinge_loss, (0.1 + 0.4 + 0.5 * 0.9 + 0) / 3, (-1, 1, -0.5)),
    ],
)
def test_naive_losses_on_paper(loss, expected, expected_gradient):
    """Cosines 0.8, 0.5, 0 with t = 1, 0, 0.5: the terms of each formula, row by row, divided by 3 rows.
    If this fails, a baseline of the paper is not the one it is called."""
    result, gradient = loss_and_gradient(loss, torch.tensor([0.8, 0.5, 0.0]), torch.tensor([1.0, 0.0, 0.5]))
    assert result.item() == pytest.approx(expected)
    assert (3 * gradient).tolist() == pytest.approx(expected_gradient, abs=1e-6)


def test_cosine_mse_differs_from_the_source_by_a_constant():
    """Fails if what the docstring says about graded labels is wrong."""
    c, t = torch.tensor([0.8, -0.3, 0.4]).double(), torch.tensor([1.0, 0.0, 0.25]).double()
    source, source_gradient = loss_and_gradient(lambda c: (t * (1 - c) ** 2 + (1 - t) * (1 + c) ** 2).mean(), c)
    loss, gradient = loss_and_gradient(cosine_mse_loss, c, t)
    assert (source - loss).item() == pytest.approx((4 * t * (1 - t)).mean().item())
    torch.testing.assert_close(gradient, source_gradient)


@pytest.mark.parametrize("features", [("u", "v", "|u-v|"), ("|u-v|",), ("u*v", "u")])
def test_head_concatenates_the_features_it_names(features):
    """Fails if the Sentence-BERT baseline reads other features than its recipe says."""
    head = SentenceBertHead(2, 3, features, seed=1)
    u, v = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    by_hand = {"u": [1.0, -2.0], "v": [3.0, 5.0], "|u-v|": [2.0, 7.0], "u*v": [3.0, -10.0]}
    row = torch.tensor(sum((by_hand[name] for name in features), []))
    torch.testing.assert_close(head(torch.stack((u, v))[None])[0], head.linear.weight @ row + head.linear.bias)
    assert head.linear.weight.shape == (3, 2 * len(features)) and head.linear.weight.abs().min() > 0
    assert set(by_hand) == set(FEATURES)


def test_head_weights_come_from_the_seed_alone():
    """Fails if two runs of one seed differ, or a head shifts the dropout of the run."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    heads = [SentenceBertHead(8, 2, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
    assert not torch.equal(heads[0].linear.weight, heads[2].linear.weight)
    assert SentenceBertHead(8, 5, bias=False).linear.bias is None


def test_head_keeps_float32_under_autocast():
    """Fails if bf16 training rounds two close logits to the same number."""
    head, embeddings = SentenceBertHead(8, 2), torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(embeddings), head(embeddings.float()))
        assert head(embeddings.bfloat16()).dtype == torch.float32


def test_cross_entropy_on_paper():
    """Logits (0, log 3) with class 1: softmax 3/4; (0, 0, 0) style ties cost log of the classes. Labels may be floats,
    as prepared corpora store them. If this fails, Sentence-BERT learns other classes."""
    logits = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])
    expected = (math.log(4 / 3) + math.log(2)) / 2
    assert cross_entropy_loss(logits, torch.tensor([1.0, 0.0])).item() == pytest.approx(expected)
    assert cross_entropy_loss(logits, torch.tensor([True, False])).item() == pytest.approx(expected)


def test_losses_on_one_logit_on_paper():
    """Logits log 3, 0, 2 with t = 1, 0, 0.5: a sigmoid of 3/4 costs log 4/3, one of 1/2 log 2, a soft target its mean.
    If this fails, a cross-encoder of one logit learns something else than its recipe says."""
    scores, labels = torch.tensor([math.log(3.0), 0.0, 2.0]), torch.tensor([1.0, 0.0, 0.5])
    loss, gradient = loss_and_gradient(binary_cross_entropy_loss, scores, labels)
    soft = math.log(1 + math.exp(2)) - 0.5 * 2
    assert loss.item() == pytest.approx((math.log(4 / 3) + math.log(2) + soft) / 3)
    assert (3 * gradient).tolist() == pytest.approx([-1 / 4, 1 / 2, 1 / (1 + math.exp(-2)) - 0.5])
    loss, gradient = loss_and_gradient(mse_loss, torch.tensor([0.8, 3.0]), torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx((0.04 + 6.25) / 2)
    assert (2 * gradient).tolist() == pytest.approx([-0.4, 5.0])


def test_joint_cross_entropy_keeps_the_tasks_apart():
    """Equal logits: a similarity row costs log 2, an NLI row log 3; a row gives no gradient to the other task.
    If this fails, NLI classes compete with "similar"."""
    loss, gradient = loss_and_gradient(joint_cross_entropy_loss, torch.zeros(2, 5), torch.tensor([1.0, 4.0]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(3)) / 2)
    expected = torch.tensor([[1 / 2, -1 / 2, 0, 0, 0], [0, 0, 1 / 3, 1 / 3, -2 / 3]]) / 2
    torch.testing.assert_close(gradient, expected)


def test_table_of_losses_holds_its_promises():
    """Fails if a recipe's loss name runs another loss, or the trainer feeds it the wrong thing."""
    inputs = {"scores": torch.rand(6), "embeddings": torch.randn(6, 2, 4), "logits": torch.randn(6, 5)}
    other_names = {"sbert": "cross_entropy_loss", "sbert_joint": "joint_cross_entropy_loss"}
    other_names |= {"ce": "cross_entropy_loss", "ce3": "cross_entropy_loss", "bce": "binary_cross_entropy_loss"}
    for name, loss in LOSSES.items():
        result, gradient = loss_and_gradient(loss.function, inputs[loss.reads], torch.tensor([0, 1, 0, 1, 1, 0]))
        assert result.shape == () and gradient.norm() > 0, name
        assert loss.function.__name__ == other_names.get(name, f"{name}_loss")
    assert [name for name, loss in LOSSES.items() if loss.compares_pairs] == ["cosent", "angle"]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: cosent_loss(torch.rand(3), torch.tensor([1.0, math.nan, 0.0])), "got nan in row 1 .*Correct"),
        (lambda: cosent_loss(torch.rand(3), torch.rand(3, 1)), r"got torch.float32 \(3,\) and \(3, 1\)"),
        (lambda: cosent_loss(torch.rand(3, 1), torch.rand(3)), "other rows"),
        (lambda: cosent_loss(torch.arange(3), torch.rand(3)), "floating scores"),
        (lambda: angle_loss(torch.rand(3, 2, 5), torch.rand(3)), "even hidden size, got 5"),
        (lambda: angle_loss(torch.rand(3, 4), torch.rand(3)), r"\(batch, 2, hidden\)"),
        (lambda: SentenceBertHead(4, 2, ("u", "w")), "features must be some of .* got u, w"),
        (lambda: SentenceBertHead(4, 2, ()), "got none"),
        (lambda: SentenceBertHead(4, 2, ("u", "u")), "each once"),
        (lambda: SentenceBertHead(4, 2)(torch.rand(3, 3, 4)), r"got torch.float32 \(3, 3, 4\)"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0, 2])), "got 2 in row 1"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([-1, 0])), "got -1 in row 0"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([0.5, 0.0])), "whole numbers"),
        (lambda: cross_entropy_loss(torch.rand(2, 2), torch.tensor([math.nan, 0.0])), "got nan"),
        (lambda: cross_entropy_loss(torch.rand(2), torch.tensor([1, 0])), r"logits \(batch, classes\)"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 5), torch.tensor([5])), "got 5"),
        (lambda: joint_cross_entropy_loss(torch.rand(1, 4), torch.tensor([1])), "5 classes"),
    ],
)
def test_bad_input_is_refused(call, words):
    """Fails if a mistake in data or code trains something else without a word."""
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("loss", [*NAIVE, *ON_LOGITS])
def test_mean_losses_refuse_labels_that_were_not_scaled(loss):
    """Fails if STS-B labels of 0..5 train a baseline that is worse than it should be."""
    with pytest.raises(ValueError, match=r"within 0\.\.1, got 5.0 in row 1 of the batch \(1 of 2"):
        loss(torch.rand(2), torch.tensor([0.0, 5.0]))
    with pytest.raises(ValueError, match="got nan"):
        loss(torch.rand(2), torch.tensor([0.0, math.nan]))
    with pytest.raises(ValueError, match="empty batch"):
        loss(torch.rand(0), torch.rand(0))


def test_synonym_loss_by_hand():
    """Fails if a sentence competes with itself, its synonym is looked for elsewhere, or the scale is another."""
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    # cosines: 1 with the synonym, 0 with both others
    assert synonym_loss(embeddings, 1.0).item() == pytest.approx(math.log(math.e + 2) - 1, rel=1e-6)
    assert synonym_loss(embeddings, 3.0).item() == pytest.approx(math.log(math.exp(3) + 2) - 3, rel=1e-5)
    swapped = synonym_loss(embeddings[[0, 2, 1, 3]], 1.0).item()
    assert swapped == pytest.approx(math.log(math.e + 2), rel=1e-6)
    with pytest.raises(ValueError, match="pairs of synonyms side by side, got 3"):
        synonym_loss(embeddings[:3])


def test_similarity_matrix_loss_by_hand():
    """Fails if the mean is over pairs instead of the matrix, lengths count, or the widths have to agree."""
    student = torch.tensor([[2.0, 0.0], [0.0, 5.0]], requires_grad=True)  # cosine 0
    teacher = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]])  # cosine 0.6
    loss = similarity_matrix_loss(student, teacher)
    assert loss.item() == pytest.approx(100 / 4 * 2 * 0.36, rel=1e-6)
    loss.backward()
    # d loss / d c = 100 / 4 * 2 * 2 * (c - 0.6), d c / d v1 = v2 / |v1|
    assert student.grad[0].tolist() == pytest.approx([0.0, -60.0 / 2], abs=1e-4)
    with pytest.raises(ValueError, match="compares the same sentences, got 2"):
        similarity_matrix_loss(student, teacher[:1])


def test_pair_ranking_loss_is_cosent_on_cosines():
    """Fails if pairs are read across one another, or a teacher's logits have to be cosines."""
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # cosines 1 and 0
    scores = torch.tensor([-3.0, 40.0])
    expected = math.log1p(math.exp(20 * (1 - 0)))
    assert pair_ranking_loss(embeddings, scores).item() == pytest.approx(expected, rel=1e-6)
