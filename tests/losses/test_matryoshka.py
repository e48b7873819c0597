"""Matryoshka against the losses that it is made of, and sentence-transformers."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from cosent.losses.cosent import cosent_loss
from cosent.losses.in_batch import infonce_loss
from cosent.losses.matryoshka import matryoshka_loss


def test_it_is_the_mean_over_widths():
    """Fails if a width is read from another end, unnormalised, or weighs more than another."""
    embeddings = torch.randn(6, 2, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    labels, groups = torch.tensor([0.0, 1, 1, 0, 0.5, 1]), torch.arange(12).view(6, 2)
    cosines = [F.cosine_similarity(embeddings[:, 0, :dim], embeddings[:, 1, :dim]) for dim in (2, 8)]
    expected = (cosent_loss(cosines[0], labels) + cosent_loss(cosines[1], labels)) / 2
    value = matryoshka_loss(embeddings, cosent_loss, "scores", [2, 8], labels=labels)
    torch.testing.assert_close(value, expected)
    value.backward()
    assert (embeddings.grad.abs().sum((0, 1)) > 0).all()  # those behind the narrowest width too

    contrastive = partial(infonce_loss, labels=labels, groups=groups)
    value = matryoshka_loss(embeddings, infonce_loss, "embeddings", [4], labels=labels, groups=groups)
    torch.testing.assert_close(value, contrastive(embeddings[..., :4]))


def test_a_width_above_that_of_the_embeddings():
    """Fails if a width that does not exist trains the full one a second time, in silence."""
    with pytest.raises(ValueError, match="8.*16"):
        matryoshka_loss(torch.ones(2, 2, 8), cosent_loss, "scores", [16], labels=torch.tensor([0.0, 1]))
