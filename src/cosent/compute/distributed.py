"""Processes of a launch: gathering with gradients, and decisions of rank 0."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cosent.atomic import locked
from cosent.errors import InputError

if TYPE_CHECKING:
    from accelerate import Accelerator

Result = TypeVar("Result")


def world_size() -> int:
    """Number of processes; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Rank of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def local_rank() -> int:
    """Rank of this process on its machine, from 0."""
    return int(os.environ.get("LOCAL_RANK", 0)) if world_size() > 1 else 0


def launched_with() -> str | None:
    """`fsdp` or `deepspeed` if the configuration of `accelerate launch` requests it, else None."""
    strategies = (name for name in ("fsdp", "deepspeed") if os.environ.get(f"ACCELERATE_USE_{name.upper()}") == "true")
    return next(strategies, None)


def gather(values: Tensor) -> Tensor:
    """Gathers the rows of all ranks, in rank order, with gradients: (batch, ...) -> (world_size * batch, ...).

    The gradient of a rank's rows is the sum over all ranks of the gradients of their losses. DistributedDataParallel
    then averages over ranks: a loss of the gathered rows that every rank computes in full comes out exactly as in one
    process with all rows, since the two factors of world_size cancel. All ranks need the same number of rows.
    """
    return values if world_size() == 1 else _Gather.apply(values)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        values = values.contiguous()  # shapes and strides must agree across ranks
        gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, values)
        ctx.rows = len(values)
        return torch.cat(gathered)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream: Tensor) -> Tensor:
        total = upstream.clone(memory_format=torch.contiguous_format)  # all_reduce works in place
        dist.all_reduce(total)
        return total[dist.get_rank() * ctx.rows :][: ctx.rows]


@contextmanager
def without_sync(accelerator: Accelerator, model: nn.Module) -> Iterator[None]:
    """Keeps DDP from averaging gradients, and DeepSpeed from stepping, before the last part of a batch."""
    state = accelerator.gradient_state
    synchronises = state.sync_gradients
    state._set_sync_gradients(False)
    try:
        with accelerator.no_sync(model):
            yield
    finally:
        state._set_sync_gradients(synchronises)


def gather_object(value: Result) -> list[Result]:
    """Gathers a picklable value from every rank, in rank order."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def wait_for_everyone() -> None:
    if world_size() > 1:
        dist.barrier()


def decided_by_main(decide: Callable[[], Result]) -> Result:
    """Calls `decide` on rank 0 only; every rank returns its result, or raises the `InputError` that it raised.

    For decisions about files that rank 0 writes or removes: ranks that each check the disk may disagree.
    """
    outcome: list[Any] = [None, None]  # result, error
    if rank() == 0:
        try:
            outcome[0] = decide()
        except InputError as error:
            outcome[1] = error
    if world_size() > 1:
        dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


@contextmanager
def locked_by_main(output: str | Path) -> Iterator[None]:
    """`atomic.locked` by rank 0; every rank raises if another job has the lock."""
    with ExitStack() as locks:
        decided_by_main(lambda: locks.enter_context(locked(output)))
        yield
