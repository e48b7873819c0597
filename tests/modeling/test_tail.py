"""Modules after pooling compute what they compute in sentence-transformers."""

import pytest
import torch
from sentence_transformers.sentence_transformer import modules

from cosent.models.modules import ACTIVATIONS, build


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation(name, residual):
    """Fails if a Dense layer computes another function than in sentence-transformers."""
    theirs = modules.Dense(6, 4, activation_function=getattr(torch.nn, name)(), use_residual=residual).eval()
    ours = build("Dense", theirs.get_config_dict(), "config.json", 6).eval()
    ours.load_state_dict(theirs.state_dict())
    vectors = torch.randn(5, 6)
    torch.testing.assert_close(ours(vectors), theirs({"sentence_embedding": vectors})["sentence_embedding"])
    assert ours.config() == {key: value for key, value in theirs.get_config_dict().items() if "module" not in key}
