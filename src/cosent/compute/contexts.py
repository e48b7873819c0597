"""Context managers: evaluation mode, and a fixed random seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from cosent.compute.threads import modes, survive_forks

_evaluated: dict[nn.Module, tuple[int, list[nn.Module]]] = {}  # by model: threads inside, modules to put back in train


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block in evaluation mode (without dropout) and then restores the mode of every module.

    With several threads inside, the last one to leave restores the modes. A model in evaluation mode is never touched.
    """
    survive_forks()
    with modes:
        threads, trained = _evaluated.get(model) or (0, [module for module in model.modules() if module.training])
        _evaluated[model] = threads + 1, trained
        set_training(trained, False)
    try:
        yield
    finally:
        with modes:
            threads, trained = _evaluated.pop(model)
            if threads > 1:
                _evaluated[model] = threads - 1, trained
            else:
                set_training(trained, True)


def set_training(modules: list[nn.Module], training: bool) -> None:
    for module in modules:
        module.training = training


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs a block with random numbers that depend only on `seed`; the global random state is restored."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # without the list, it warns about several devices
        torch.manual_seed(seed)
        yield
