"""Choice of device, locks of models and tokenizers between threads, and safety after forks."""

import os
import re
import sys
from functools import cache
from threading import RLock

import torch

from cosent.errors import InputError

modes, _tokenizers = RLock(), RLock()  # for the modes of models (see `distributed.evaluating`), and for tokenizers


def run_tokenizer(tokenizer, *texts: str | list[str], **options):
    """Calls a tokenizer, one thread at a time: each call stores its truncation in it, which others would apply too."""
    with _tokenizers:
        return tokenizer(*texts, **options)


@cache
def survive_forks() -> None:
    """Lets processes forked from now on compute, on one thread, since OpenMP threads are not copied.

    A fork waits for the locks: the thread that holds one is not copied either, and would never release it.
    """
    if sys.platform != "win32":
        for lock in (modes, _tokenizers):
            os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def choose_device(device: str | None, int8: bool = False) -> str:
    """Returns the device that was asked for, or the default."""
    if device is None:
        return "cuda" if torch.cuda.is_available() and not int8 else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"--device is cpu, cuda or cuda:N, got {device}.")
    if device != "cpu" and int8:
        raise InputError(f"--int8 is for the CPU, got --device {device}. Drop one of the two.")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: this PyTorch sees no CUDA device. Install a CUDA build, or use the CPU.")
    return device
