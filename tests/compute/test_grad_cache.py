"""Gradient caching against what it stands for: the same loss with all graphs kept."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from cosent.compute.grad_cache import backward_in_parts, split_batch
from cosent.losses.cosent import cosent_loss


class Scorer(nn.Module):
    """Three layers on random features, with dropout: scores and embeddings of pairs."""

    def __init__(self, dropout: float):
        super().__init__()
        layers = [nn.Linear(12, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 8)]
        self.layers = nn.Sequential(*layers).double()

    def forward(self, part):
        embeddings = self.layers(part["features"])  # (rows, 2, 8)
        return {"scores": cosine_similarity(*embeddings.unbind(1)), "embeddings": embeddings}


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(22, 2, 12, generator=generator, dtype=torch.float64)
    return {"features": features}, torch.arange(22) % 3


def parts_of(features, rows):
    return [{"features": part} for part in features["features"].split(rows)]


def gradients(model, backward):
    """Gradients of a model after `backward()`, which starts from one seed, and the random number that follows."""
    model.zero_grad()
    torch.manual_seed(3)
    value = backward()
    return value, torch.cat([weight.grad.flatten() for weight in model.parameters()]), torch.rand(1)


def kept_graphs(model, parts, loss):
    outputs = [model(part) for part in parts]
    value = loss({name: torch.cat([output[name] for output in outputs]) for name in outputs[0]})
    value.backward()
    return value


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("rows", [5, 22, 100])
def test_cached_equals_the_same_parts_with_their_graphs(batch, dropout, rows):
    """Fails if caching optimises another loss, replays other dropout, or leaves another random state behind."""
    features, labels = batch
    model = Scorer(dropout)
    parts = parts_of(features, rows)

    def loss(outputs):  # two tensors at once: a ranking of scores, a penalty on embeddings
        return cosent_loss(outputs["scores"], labels) + outputs["embeddings"].square().mean()

    value, expected, following = gradients(model, lambda: kept_graphs(model, parts, loss))
    cached, got, after = gradients(model, lambda: backward_in_parts(model, parts, loss))
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cached, value.detach())
    assert torch.equal(after, following)


def test_parts_have_their_own_padding():
    """Fails if tokens are lost or rows mixed up when a batch is cut, or every part is padded to the longest of all."""
    mask = torch.tensor([[[1, 1, 0, 0], [1, 0, 0, 0]], [[1, 1, 1, 1], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 0]]])
    ids = torch.arange(24).view(3, 2, 4)
    parts = split_batch({"input_ids": ids, "attention_mask": mask, "weight": torch.tensor([7, 8, 9])}, 1)
    assert [tuple(part["input_ids"].shape) for part in parts] == [(1, 2, 2), (1, 2, 4), (1, 2, 3)]
    assert parts[0]["input_ids"].tolist() == [[[0, 1], [4, 5]]] and [int(part["weight"]) for part in parts] == [7, 8, 9]
    joined = split_batch({"input_ids": ids[:, 0], "attention_mask": mask[:, 0]}, 2)
    assert [tuple(part["input_ids"].shape) for part in joined] == [(2, 4), (1, 3)]
