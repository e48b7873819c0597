"""The head of Sentence-BERT."""

import pytest
import torch

from cosent.models.heads import FEATURES, SentenceBertHead


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


def test_weights_come_from_the_seed_alone_and_stay_float32():
    """Fails if two runs of one seed differ, a head shifts the dropout of the run, or bf16 training rounds two close
    logits to the same number."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    heads = [SentenceBertHead(8, 2, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
    assert not torch.equal(heads[0].linear.weight, heads[2].linear.weight)
    assert SentenceBertHead(8, 5, bias=False).linear.bias is None
    embeddings = torch.randn(4, 2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(heads[0](embeddings), heads[0](embeddings.float()))
        assert heads[0](embeddings.bfloat16()).dtype == torch.float32


def test_bad_features_and_embeddings_are_refused():
    """Fails if a mistake in a recipe or in code trains something else without a word."""
    for features in (("u", "w"), (), ("u", "u")):
        with pytest.raises(ValueError, match="features"):
            SentenceBertHead(4, 2, features)
    with pytest.raises(ValueError, match=r"got torch.float32 \(3, 3, 4\)"):
        SentenceBertHead(4, 2)(torch.rand(3, 3, 4))
