"""Locks that let threads share a model and a tokenizer, and let a process that used them fork."""

import os
import sys
from functools import cache
from threading import RLock

import torch

modes, _tokenizers = RLock(), RLock()  # for the modes of models (see `contexts.evaluating`), and for tokenizers


def run_tokenizer(tokenizer, *texts: str | list[str], **options):
    """Calls a tokenizer, one thread at a time.

    Each call stores its truncation in the tokenizer. Another thread in the middle of a call would silently cut
    sentences that fit, or keep those that do not: 206 of 800 calls in four threads (tokenizers 0.23).
    """
    with _tokenizers:
        return tokenizer(*texts, **options)


@cache
def survive_forks() -> None:
    """Makes processes forked from now on able to compute, on one thread.

    OpenMP's threads are not copied into a child, which would wait for them forever. A fork waits for the locks too: the
    thread that holds one is not copied either, and would never release it.
    """
    if sys.platform != "win32":
        for lock in (modes, _tokenizers):
            os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
