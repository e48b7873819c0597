"""Recognise running out of memory, on any device, and agree about it over all processes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cosent.compute.distributed import gather_object

# Messages of what PyTorch raises as a plain RuntimeError: its CPU allocator (Linux, Windows), oneDNN, cuBLAS, and MPS.
MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "could not create a primitive",
    "could not create a memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "out of memory",
)


class DoesNotFit(Exception):
    """Some process ran out of memory; every process raises it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that a device or the machine has no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in MESSAGES)


@contextmanager
def fits_everywhere() -> Iterator[None]:
    """Runs a block on every process, and ends it with the same outcome on all of them.

    The block must not communicate: a process that runs out of memory in it would leave the others waiting. They meet at
    its end.

    Raises:
        DoesNotFit: it ran out of memory on any process; with the first line of its error.
    """
    reason = None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    reasons = [told for told in gather_object(reason) if told is not None]
    if reasons:
        raise DoesNotFit(reasons[0])
