"""Nucleus sampling on distributions that can be checked by hand."""

import pytest
import torch

from cosent.student import sampling
from cosent.student.sampling import sample_tokens

LOGITS = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()


def shares(count: int = 1000, **parameters) -> list[float]:
    """Share of each token over evenly spaced random numbers."""
    uniform = (torch.arange(count) + 0.5) / count
    tokens = sample_tokens(LOGITS.expand(count, -1), uniform, **parameters)
    return (torch.bincount(tokens, minlength=4) / count).tolist()


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"top_p": 1.0}, [0.15, 0.5, 0.05, 0.3]),
        ({"top_p": 0.7}, [0, 0.625, 0, 0.375]),  # 0.5 < 0.7 <= 0.8: two tokens, 5 : 3
        ({"top_p": 0.9}, [0.15 / 0.95, 0.5 / 0.95, 0, 0.3 / 0.95]),
        ({"top_p": 0.1}, [0, 1, 0, 0]),
        ({"top_p": 1.0, "top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"top_p": 1.0, "temperature": 0.5}, [0.0225 / 0.365, 0.25 / 0.365, 0.0025 / 0.365, 0.09 / 0.365]),
    ],
)
def test_shares_by_hand(parameters, expected):
    """Fails if the nucleus holds a token too many or too few, or shares are not the renormalised probabilities."""
    assert shares(**parameters) == pytest.approx(expected, abs=2e-3)


def test_draws_that_share_rows(monkeypatch):
    """Fails if a draw is made from another row than its own, also where some rows are looked at a second time."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=generator) * torch.linspace(0, 6, 40)[:, None]
    rows = torch.cat([torch.arange(40), torch.randint(40, (160,), generator=generator)])
    uniform = torch.rand(200, generator=generator)
    monkeypatch.setattr(sampling, "CANDIDATES", (8, 20))
    assert torch.equal(sample_tokens(logits, uniform, rows=rows), sample_tokens(logits[rows], uniform))


def test_a_nucleus_wider_than_the_candidates(monkeypatch):
    """Fails if looking at the most likely tokens first changes what is drawn."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 50, generator=generator) * torch.linspace(0, 4, 200)[:, None]
    uniform = torch.rand(200, generator=generator)
    whole = sample_tokens(logits, uniform, top_p=0.9)
    monkeypatch.setattr(sampling, "CANDIDATES", (8, 20))
    assert torch.equal(sample_tokens(logits, uniform, top_p=0.9), whole)


def test_forbidden_tokens_are_never_drawn():
    """Fails if a token of probability 0 comes out at either end of the random numbers."""
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf]]).expand(2, -1)
    assert sample_tokens(logits, torch.tensor([0.0, 1 - 2**-24]), top_p=1.0).tolist() == [1, 1]
