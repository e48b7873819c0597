"""Contexts of a computation: evaluation mode, and random numbers of its own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block in evaluation mode (without dropout); afterwards the model is in the mode that it was in before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs a block with random numbers that depend only on `seed`; the global random state stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
