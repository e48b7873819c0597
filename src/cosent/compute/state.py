"""State of models, tokenizers and random numbers, changed for a while: by any number of threads, and put back."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import nn

_modes, _tokenizers = RLock(), RLock()  # of the modes of models, and of tokenizers


def run_tokenizer(tokenizer, *texts: str | list[str], **options):
    """Calls a tokenizer, one thread at a time: a call stores its truncation in the tokenizer."""
    with _tokenizers:
        return tokenizer(*texts, **options)


_evaluated: dict[nn.Module, tuple[int, list[nn.Module]]] = {}  # by model: threads inside, modules to put back in train


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a block in evaluation mode; the last of several threads inside restores the mode of every module."""
    with _modes:
        threads, trained = _evaluated.get(model) or (0, [module for module in model.modules() if module.training])
        _evaluated[model] = threads + 1, trained
        for module in trained:
            module.training = False
    try:
        yield
    finally:
        with _modes:
            threads, trained = _evaluated.pop(model)
            if threads > 1:
                _evaluated[model] = threads - 1, trained
            else:
                for module in trained:
                    module.training = True


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Runs a block with random numbers that depend only on `seed`; the global random state is restored."""
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # without the list, it warns about several devices
        torch.manual_seed(seed)
        yield
