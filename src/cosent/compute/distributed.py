"""Several processes as one: gathering with gradients, waiting for one another, decisions that one of them takes."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from cosent.errors import InputError

Result = TypeVar("Result")


def world_size() -> int:
    """Processes that train or compute together; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(values: Tensor) -> Tensor:
    """The rows of all ranks in the order of the ranks, with gradients: (batch, ...) -> (world_size * batch, ...).

    The gradient that a rank's rows get is the sum over all ranks of the gradients of their losses, as if there were one
    process. DistributedDataParallel then averages over ranks: a loss of the gathered rows that every rank computes in
    full comes out exactly as in one process with all rows, since the two factors of world_size cancel.

    Args:
        values: as many rows on every rank. With one process it is returned as it is.
    """
    return values if world_size() == 1 else _Gather.apply(values)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values: Tensor) -> Tensor:
        values = values.contiguous()  # shapes and strides have to agree over ranks
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


def gather_object(value: Result) -> list[Result]:
    """A picklable value of every rank, in the order of the ranks."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def wait_for_everyone() -> None:
    if world_size() > 1:
        dist.barrier()


def decided_by_main(decide: Callable[[], Result]) -> Result:
    """Calls `decide` on rank 0 alone; every rank returns its result, or raises the `InputError` that it raised.

    For whatever looks at files that rank 0 writes or removes: ranks that look for themselves may see different ones.
    """
    outcome = [None, None]
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
