"""Losses of a student against values derived by hand."""

import math

import pytest
import torch

from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss


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
